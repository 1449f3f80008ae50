"""Test the pure parts of the live view: folding, filters, history, and lines of a given width."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from innoscope.cli.top.frame import Choice, FoldedSnapshot, Order, waits
from innoscope.cli.top.history import WaitHistory, bar, sparkline
from innoscope.cli.top.lines import (
    Widths,
    fit,
    headline,
    leaf_first,
    short,
    stack_lines,
    wait_line,
    waits_head,
)
from innoscope.sampling.model import Frame, Trust
from unit.snapshots import frames, snapshot_of, thread

IDLE = frames("libc.so.6!__poll", "vio_io_wait", "do_command")
LOCK = frames("libc.so.6!__futex", "libc.so.6!__pthread_cond_wait", "lock_wait_suspend_thread", "row_upd")


def test_equal_stacks_are_one_row_and_changes_are_counted() -> None:
    before = FoldedSnapshot(
        snapshot_of(thread(1, IDLE, "idle"), thread(2, IDLE, "idle"), thread(3, LOCK, "row_lock"))
    )
    other_objects = tuple(Frame(frame.function, frame.module, 99) for frame in IDLE)
    after = FoldedSnapshot(
        snapshot_of(thread(1, IDLE, "idle"), thread(2, other_objects, "idle"), thread(4, IDLE, "idle")),
        before,
    )
    assert [(row.wait, row.count, row.change) for row in after.rows] == [("idle", 3, 1)]
    assert all(row.change == 0 for row in before.rows)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(), ["idle", "row_lock", "fsync_redo"]),
        (Choice(wait="row_lock"), ["row_lock"]),
        (Choice(hide_idle=True), ["row_lock", "fsync_redo"]),
        (Choice(text="SUSPEND"), ["row_lock"]),
        (Choice(text="update t1"), ["row_lock"]),
        (Choice(text="app@localhost"), ["row_lock"]),
        (Choice(text="nowhere"), []),
        (Choice(order=Order.CLASS), ["fsync_redo", "idle", "row_lock"]),
        (Choice(order=Order.FUNCTION), ["row_lock", "idle", "fsync_redo"]),
        (Choice(order=Order.CHANGE), ["fsync_redo", "idle", "row_lock"]),
    ],
)
def test_rows_are_filtered_and_sorted(choice: Choice, expected: list[str]) -> None:
    base = [thread(1, IDLE, "idle"), thread(2, IDLE, "idle"), thread(3, IDLE, "idle")]
    locks = [thread(4, LOCK, "row_lock", query="update t1 set a=?"), thread(5, LOCK, "row_lock")]
    fsync = thread(6, frames("fsync_it"), "fsync_redo")
    folded = FoldedSnapshot(snapshot_of(*base, *locks, fsync), FoldedSnapshot(snapshot_of(*base, *locks)))
    assert [row.wait for row in folded.choose(choice)] == expected


def test_the_sort_orders_form_a_cycle() -> None:
    order = Order.THREADS
    assert [order := order.next for _ in Order][-1] is Order.THREADS


def test_wait_classes_are_sorted_by_threads() -> None:
    counts = {"other": 1, "idle": 9, "row_lock": 1}
    assert waits(counts, Choice()) == [("idle", 9), ("other", 1), ("row_lock", 1)]
    assert waits(counts, Choice(hide_idle=True)) == [("other", 1), ("row_lock", 1)]


def test_the_history_covers_the_last_minute() -> None:
    history = WaitHistory(span_s=60)
    for second in range(100):
        history.add(1000 + second, {"idle": second})
    assert history.series("idle", 60)[-3:] == [97, 98, 99]
    assert history.series("idle", 30)[-2:] == [97, 99]
    assert history.series("row_lock", 3) == [0, 0, 0]
    assert history.known() == {"idle"}


def test_a_gap_is_blank_but_a_long_interval_is_filled() -> None:
    slow = WaitHistory(span_s=60)
    for second in (0, 5, 10, 15):
        slow.add(1000 + second, {"idle": 3})
    assert slow.series("idle", 60)[-16:] == [3] * 16
    assert slow.series("idle", 60)[:40] == [None] * 40
    gap = WaitHistory(span_s=60)
    for second in (0, 1, 2, 40, 41, 42):
        gap.add(1000 + second, {"idle": 3})
    assert gap.series("idle", 60)[25:50] == [None] * 25


def test_going_back_in_time_clears_the_history() -> None:
    history = WaitHistory()
    history.add(1000, {"idle": 1})
    history.add(900, {"row_lock": 1})
    assert history.known() == {"row_lock"}


def test_sparklines_show_small_values_above_zero() -> None:
    assert sparkline([None, 0, 1, 500, 1000]) == " ▁▂▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_bars_have_eighths_and_a_minimum() -> None:
    assert [bar(value, 16, 2) for value in (0, 1, 8, 9, 16)] == ["", "▏", "█", "█▏", "██"]
    assert bar(1, 100_000, 10) == "▏"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("lock_wait_suspend_thread(que_thr_t*)", "lock_wait_suspend_thread"),
        ("void std::vector<int, std::allocator<int> >::push_back(int const&)", "std::vector::push_back"),
        ("(anonymous namespace)::f(int)", "f"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("log_write.isra.0", "log_write"),
        ("foo(int) [clone .constprop.3]", "foo"),
        ("Foo::operator()(int) const", "Foo::operator()(int) const"),
        ("mysqld+0x1234", "mysqld+0x1234"),
        ("Buf_fetch<Buf_fetch_normal>::single_page", "Buf_fetch::single_page"),
    ],
)
def test_function_names_are_shortened(label: str, expected: str) -> None:
    assert short(label) == expected


def test_stacks_begin_at_the_innermost_function_of_the_server() -> None:
    assert leaf_first(LOCK, "row_lock") == "lock_wait_suspend_thread ← row_upd"
    assert leaf_first(IDLE, "idle") == "vio_io_wait ← do_command"
    assert leaf_first(IDLE, "on_cpu").startswith("__poll ← vio_io_wait")
    assert leaf_first((), "row_lock") == "(no frames)"


@pytest.mark.parametrize("columns", [20, 40, 77, 119, 157])
def test_every_line_has_the_requested_width(columns: int) -> None:
    wide = frames("漢字" * 60, "operator[]")
    row = FoldedSnapshot(
        snapshot_of(*(thread(tid, wide, "row_lock", query="select '漢字' from t") for tid in range(3)))
    ).rows[0]
    widths = Widths.of(columns, ["a class with a very long name indeed"])
    texts = [
        *stack_lines(row, "a class with a very long name indeed", widths),
        headline(snapshot_of(), columns),
        fit("漢" * 99, columns),
    ]
    assert [cell_len(text) for text in texts] == [columns] * len(texts)
    if columns >= 40:
        assert cell_len(waits_head(widths)) == columns
        series = [1] * widths.spark
        assert cell_len(wait_line("row lock", 99_999, 99_999, series, widths)) <= columns


def test_control_characters_in_names_are_escaped() -> None:
    evil = frames("\x1b]0;owned\x07", "f\x9b2J")
    row = FoldedSnapshot(snapshot_of(thread(1, evil, "row_lock", query="select \x1b[2J\nfrom t"))).rows[0]
    for line in stack_lines(row, "row lock", Widths.of(100, ["row lock"])):
        assert line.isprintable()


def test_unreliable_stacks_are_marked() -> None:
    snapshot = snapshot_of(thread(1, IDLE, "other", trust=Trust.STALE), thread(2, IDLE, "other"))
    row = FoldedSnapshot(snapshot).rows[0]
    assert "[1 of 2 stale]" in stack_lines(row, "other", Widths.of(100, ["other"]))[0]


def test_statements_are_listed_below_their_stack() -> None:
    folded = FoldedSnapshot(
        snapshot_of(
            thread(1, IDLE, "x", query="a"), thread(2, IDLE, "x", query="b"), thread(3, IDLE, "x", query="b")
        )
    )
    second = stack_lines(folded.rows[0], "x", Widths.of(80, ["x"]))[1]
    assert second.strip() == "└ 2× (and 1 more) b"
