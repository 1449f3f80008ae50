"""Test how threads are folded into groups and filtered."""

from __future__ import annotations

import pytest

from innoscope.sampling.fold import Filter, StackReport, fold
from innoscope.sampling.model import Frame, Trust
from unit.snapshots import IDLE, ROW_LOCK, mixed, snapshot_of, target, thread


def test_largest_group_is_first() -> None:
    groups = fold([mixed()])

    assert [(group.count, group.wait) for group in groups] == [(3, "idle"), (2, "row_lock"), (1, "on_cpu")]
    assert list(groups[1].tids) == [4, 5]
    assert groups[1].queries == {"UPDATE `t` SET `a` = ?": 2}


def test_same_functions_at_other_addresses_are_one_stack() -> None:
    moved = tuple(Frame(frame.function, frame.module, frame.offset + 8) for frame in IDLE)

    assert [group.count for group in fold([snapshot_of(thread(1), thread(2, moved))])] == [2]


def test_functions_without_symbols_are_distinguished_by_address() -> None:
    one, two = (Frame(None, "mysqld", 16),), (Frame(None, "mysqld", 32),)

    assert len(fold([snapshot_of(thread(1, one), thread(2, two))])) == 2


def test_one_stack_in_two_classes_is_two_groups() -> None:
    assert len(fold([snapshot_of(thread(1, ROW_LOCK, "row_lock"), thread(2, ROW_LOCK, "on_cpu"))])) == 2


def test_groups_by_wait_have_the_stacks_as_parts() -> None:
    groups = fold([mixed()], "wait")

    assert [(group.wait, group.count, len(group.parts)) for group in groups] == [
        ("idle", 3, 1),
        ("row_lock", 2, 1),
        ("on_cpu", 1, 1),
    ]
    assert groups[1].trust == {Trust.EXACT: 1, Trust.TORN: 1}


def test_groups_by_thread_add_the_snapshots() -> None:
    busy = snapshot_of(thread(1, ROW_LOCK, "row_lock"))

    (group,) = fold([snapshot_of(thread(1)), busy, busy], "thread")

    assert group.count == 3
    assert [(part.wait, part.count) for part in group.parts] == [("row_lock", 2), ("idle", 1)]
    assert group.thread is busy.threads[0]


def test_marks_count_the_unreliable_stacks() -> None:
    groups = fold([mixed()])

    assert [group.marks for group in groups] == ["", "[1 of 2 torn]", "[stale]"]


@pytest.mark.parametrize(
    ("chosen", "tids"),
    [
        (Filter(["row_lock"]), [4, 5]),
        (Filter(grep="nth_level"), [6]),
        (Filter(grep="UPDATE .t"), [4, 5]),
        (Filter(grep="^mysqld$"), [1, 2, 3, 4, 5, 6]),
        (Filter(["idle"], "UPDATE"), []),
    ],
)
def test_filter_selects_by_class_and_by_name_or_statement(chosen: Filter, tids: list[int]) -> None:
    assert [item.tid for item in chosen.apply(mixed()).threads] == tids


def test_empty_filter_returns_the_snapshot_itself() -> None:
    whole = mixed()

    assert Filter().apply(whole) is whole


def test_report_counts_all_threads_and_folds_the_filtered_ones() -> None:
    report = StackReport(target(), Filter(["row_lock"]))

    filtered = report.add(mixed())
    report.add(mixed())

    assert len(filtered.threads) == 2
    assert (report.snapshots, report.threads, report.shown) == (2, 12, 4)
    assert report.waits == {"idle": 6, "row_lock": 4, "on_cpu": 2}
    assert report.tally == {"exact": 8, "torn": 2, "stale": 2}
    assert [group.count for group in report.fold.by_stack()] == [4]
