"""Test the files of the active session history under rotation, limits, kills, clock steps and damage."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from innoscope import _native
from innoscope.common.errors import CannotWrite
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.model import Batch, Sampled, stack_id
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from innoscope.target.digests import digest_id
from scale import count
from unit.session_samples import DIGEST, STACK, START, STATEMENT, Clock, batch, rows, shape

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600
#: The writer is killed before each step whose number is a multiple of this.
KILL_EVERY = count(quick=12, full=1)


def store(folder: Path, clock: Clock, bounds: HistoryLimits | None = None) -> HistoryStore:
    """Return a store for a directory, as if the process of any earlier store had exited."""
    (folder / ".lock").unlink(missing_ok=True)
    made = HistoryStore(folder, bounds or HistoryLimits(), clock, clock)
    made.prepare()
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_samples_are_in_a_file_after_five_minutes_and_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock)
    one.add("orders", batch(START + 1))
    one.tick()
    assert names(tmp_path) == []
    clock.now += 300
    one.tick()
    assert names(tmp_path) == ["2023-11-14T22Z.000001-000001"]
    one.add("orders", batch(START + 302))
    one.close()
    assert rows(tmp_path) == {(START + at, tid): 1 for at in (1, 302) for tid in (10, 11, 12)}
    assert one.counts.rows == 6
    part = tmp_path / "2023-11-14T22Z.000001-000001"
    assert {path.name: path.stat().st_mode & 0o777 for path in part.iterdir()} == dict.fromkeys(
        ("samples.parquet", "snapshots.parquet", "stacks.parquet", "digests.parquet", "cursor.json"), 0o640
    )
    assert part.stat().st_mode & 0o777 == 0o750


def test_file_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        one = store(tmp_path, Clock())
        one.add("orders", batch(START))
        one.close()
    finally:
        os.umask(before)
    (path,) = tmp_path.glob("*/samples.parquet")
    assert path.stat().st_mode & 0o777 == 0o640


def test_ended_hour_becomes_one_part_with_each_dictionary_entry_once(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock)
    for minute in range(62):
        clock.now = START + 60 * minute
        one.add("orders", batch(clock.now))
        one.tick()
    clock.now = START + HOUR + 300
    one.tick()
    assert names(tmp_path)[0] == "2023-11-14T22Z.000001-000012"
    assert [name[:14] for name in names(tmp_path)[1:]] == ["2023-11-14T23Z"] * 2
    assert set(rows(tmp_path).values()) == {1}
    assert len(rows(tmp_path)) == 62 * 3
    hour = tmp_path / names(tmp_path)[0]
    assert _native.history_check("samples", hour / "samples.parquet") == 180
    assert _native.history_check("snapshots", hour / "snapshots.parquet") == 60
    assert _native.history_check("stacks", hour / "stacks.parquet") == 1
    assert _native.history_stacks([hour / "stacks.parquet"], [stack_id(STACK)])[0] == {
        stack_id(STACK): list(STACK)
    }
    assert _native.history_digests([hour / "digests.parquet"], [DIGEST])[0] == {DIGEST: STATEMENT}


def test_idle_server_costs_only_its_snapshots(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock)
    one.add("orders", batch(START, range(0)))
    one.close()
    (part,) = files.live_parts(tmp_path)
    assert sorted(path.name for path in part.path.iterdir()) == ["cursor.json", "snapshots.parquet"]


def test_many_rows_are_written_before_the_time(tmp_path: Path) -> None:
    one = store(tmp_path, Clock(), HistoryLimits(part_rows=10))
    for second in range(8):
        one.add("orders", batch(START + second))
    assert names(tmp_path) == ["2023-11-14T22Z.000001-000001", "2023-11-14T22Z.000002-000002"]


def test_texts_that_differ_in_each_row_are_written_before_they_need_much_memory(tmp_path: Path) -> None:
    one = store(tmp_path, Clock(), HistoryLimits(part_bytes=1 << 20))
    for second in range(200):
        shapes = [shape(user=f"{second} {number} " + "x" * 500) for number in range(20)]
        one.add("orders", batch(START + second, range(20), 1.0, *shapes))
    assert len(names(tmp_path)) >= 2


def test_size_is_bounded_and_the_oldest_parts_are_removed_first(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock, HistoryLimits(most_bytes=20_000))
    for hour in range(10):
        clock.now = START + hour * HOUR
        one.add("orders", batch(clock.now))
        clock.now += 400
        one.tick()
    parts = files.live_parts(tmp_path)
    assert sum(part.bytes for part in parts) == one.counts.bytes <= 20_000
    assert [part.first for part in parts] == list(range(11 - len(parts), 11))
    assert one.counts.removed == 10 - len(parts) > 0


def test_age_is_bounded_if_the_clock_has_been_steady_for_an_hour(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock, HistoryLimits(keep_s=3 * HOUR))
    for hour in range(8):
        clock.now = START + hour * HOUR
        one.add("orders", batch(clock.now))
        clock.now += 400
        one.tick()
    assert [part.hour - START // HOUR for part in files.live_parts(tmp_path)] == [4, 5, 6, 7]


def test_clock_step_forward_removes_nothing_until_the_clock_is_steady(tmp_path: Path) -> None:
    clock, uptime = Clock(), Clock(0)
    one = HistoryStore(tmp_path, HistoryLimits(keep_s=HOUR), clock, uptime)
    one.prepare()

    def wait(seconds: float) -> None:
        clock.now += seconds
        uptime.now += seconds
        one.tick()

    one.add("orders", batch(START))
    wait(2 * HOUR)
    clock.now += 365 * 86_400
    wait(400)
    assert len(files.live_parts(tmp_path)) == 1
    clock.now -= 365 * 86_400
    wait(400)
    assert len(files.live_parts(tmp_path)) == 1
    wait(2 * HOUR)
    assert len(files.live_parts(tmp_path)) == 0


def test_clock_step_back_neither_duplicates_nor_loses_samples(tmp_path: Path) -> None:
    clock = Clock(START + HOUR)
    one = store(tmp_path, clock)
    one.add("orders", batch(START + HOUR + 10))
    clock.now += HOUR
    one.tick()
    clock.now = START + 60  # two hours back
    one.add("orders", batch(START + 20))
    one.tick()
    one.add("orders", batch(START + HOUR + 20))
    one.close()
    clock.now = START + 3 * HOUR
    one.tick()
    clock.now += 400
    one.tick()
    assert set(rows(tmp_path).values()) == {1}
    assert {at - START for at, _ in rows(tmp_path)} == {HOUR + 10, 20, HOUR + 20}
    assert names(tmp_path) == ["2023-11-14T22Z.000002-000002", "2023-11-14T23Z.000001-000003"]


def test_parts_from_the_future_expire_with_those_written_after_them(tmp_path: Path) -> None:
    clock = Clock(START + 1000 * HOUR)
    one = store(tmp_path, clock, HistoryLimits(keep_s=HOUR))
    one.add("orders", batch(clock.now))
    one.close()
    clock.now = START
    one = store(tmp_path, clock, HistoryLimits(keep_s=HOUR))
    one.add("orders", batch(clock.now))
    one.close()
    clock.now += 3 * HOUR
    one.tick()
    clock.now += 2 * HOUR
    one.tick()
    assert names(tmp_path) == []


def test_late_samples_of_a_merged_hour_are_merged_too(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock)
    for at in (0, 400, 4100):
        one.add("orders", batch(START + at % HOUR))
        clock.now = START + at + 350
        one.tick()
    clock.now += HOUR
    one.tick()
    assert [name[15:] for name in names(tmp_path)] == ["000001-000003"]
    assert set(rows(tmp_path).values()) == {1}


def _write(folder: Path, kill_at: int, written: Path) -> None:
    """Write a batch every ten minutes for two hours, until killed before step ``kill_at``.

    ``written`` receives the minute of the last complete tick.
    """
    steps = iter(range(1_000_000))

    def step(_: str) -> None:
        if next(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    clock = Clock()
    one = HistoryStore(folder, HistoryLimits(), clock, clock, step)
    one.prepare()
    for minute in range(0, 130, 10):
        clock.now = START + 60 * minute
        one.add("orders", batch(clock.now))
        clock.now += 310
        one.tick()
        written.write_text(str(minute))


def test_kill_at_any_step_loses_only_the_open_part_and_duplicates_nothing(memory_folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    for kill_at in range(0, 1_000, KILL_EVERY):
        folder, written = memory_folder / str(kill_at), memory_folder / f"{kill_at}.minute"
        written.write_text("-10")
        writer = context.Process(target=_write, args=(folder, kill_at, written))
        writer.start()
        writer.join()
        found = rows(folder)
        safe = {START + 60 * minute for minute in range(0, int(written.read_text()) + 1, 10)}
        assert {at for at, _ in found} >= safe, kill_at
        assert set(found.values()) <= {1}, kill_at
        clock = Clock(START + 5 * HOUR)
        again = store(folder, clock)
        again.add("orders", batch(clock.now))
        clock.now += 3 * HOUR
        again.tick()
        added = dict.fromkeys([(START + 5 * HOUR, tid) for tid in (10, 11, 12)], 1)
        assert rows(folder) == found | added
        assert not any(name.startswith(".") for name in names(folder))
        assert len(names(folder)) == len({name[:14] for name in names(folder)}), "one part per hour"
        if writer.exitcode == 0:
            break
    assert kill_at > 50


def test_damaged_part_is_reported_and_does_not_stop_the_others(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock)
    for minute in range(0, 50, 10):
        one.add("orders", batch(START + 60 * minute))
        clock.now = START + 60 * minute + 310
        one.tick()
    damaged = tmp_path / "2023-11-14T22Z.000003-000003" / "samples.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    clock.now += 2 * HOUR
    one.tick()
    assert [name[15:] for name in names(tmp_path)] == ["000001-000002", "000003-000003", "000004-000005"]
    assert one.counts.failures == 1
    clock.now += 400
    one.tick()
    assert one.counts.failures == 1


def test_folder_that_cannot_be_created_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = HistoryStore(tmp_path / "file" / "history", HistoryLimits(), Clock(), Clock())
    with pytest.raises(CannotWrite, match="cannot write the history to") as error:
        one.prepare()
    assert "history.directory" in (error.value.remedy or "")


def test_samples_are_kept_for_the_next_attempt_if_a_write_fails(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path / "history", clock)
    one.add("orders", batch(START))
    (tmp_path / "history").rename(tmp_path / "elsewhere")
    clock.now += 310
    one.tick()
    assert one.counts.failures >= 1
    assert one.counts.failure is not None
    (tmp_path / "elsewhere").rename(tmp_path / "history")
    clock.now += 310
    one.tick()
    assert one.counts.failure is None
    assert len(rows(tmp_path / "history")) == 3


def test_samples_are_dropped_and_counted_if_writing_keeps_failing(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path / "history", clock, HistoryLimits(part_rows=30))
    shutil.rmtree(tmp_path / "history")
    for second in range(100):
        one.add("orders", batch(START + second))
    assert one.counts.lost_rows == 300
    (tmp_path / "history").mkdir()
    clock.now += 310
    one.add("orders", batch(START + 310))
    one.tick()
    assert one.counts.failure is None
    (part,) = files.live_parts(tmp_path / "history")
    assert _native.history_check("stacks", part.file("stacks")) == 1


def test_cursor_is_stored_with_the_samples_and_survives_a_merge(tmp_path: Path) -> None:
    clock = Clock()
    one = store(tmp_path, clock)
    assert one.cursor == {}
    for minute in range(0, 20, 10):
        one.cursor = {"orders": 1_000 + minute}
        one.add("orders", batch(START + 60 * minute))
        clock.now = START + 60 * minute + 310
        one.tick()
    assert store(tmp_path, clock).cursor == {"orders": 1_010}
    one.cursor = {"orders": 9_999}  # no samples up to this cursor were written
    clock.now += HOUR
    one.tick()
    assert [name[15:] for name in names(tmp_path)] == ["000001-000002"]
    assert store(tmp_path, clock).cursor == {"orders": 1_010}


def test_folder_to_which_another_agent_writes_is_refused(tmp_path: Path) -> None:
    first = store(tmp_path, Clock())
    second = HistoryStore(tmp_path, HistoryLimits(), Clock(), Clock())
    with pytest.raises(CannotWrite, match="another agent writes to it"):
        second.prepare()
    del first
    second.prepare()


def test_day_of_a_hundred_busy_threads_is_small(tmp_path: Path) -> None:
    """Let 100 threads change their statement, wait class and stack at random every second."""
    hours = count(quick=1, full=24)
    random = Random(1)  # noqa: S311 - not for cryptography
    waits = ("row_lock", "on_cpu", "page_read", "fsync_redo", "mutex_wait")
    names = [f"function_number_{number}(THD*, char const*, unsigned long)" for number in range(500)]
    stacks = [tuple(random.choices(names, k=25)) for _ in range(300)]
    statements = [f"SELECT `column_{number}` FROM `table` WHERE `id` = ?" for number in range(200)]
    digests = {digest_id(text): text for text in statements}
    shapes = [
        shape(random.choice(waits), f"user{number % 5}", random.choice(stacks))._replace(
            digest=random.choice(list(digests))
        )
        for number in range(5_000)
    ]
    tids, connections, none = list(range(2_000, 2_100)), list(range(70_000, 70_100)), [None] * 100
    columns = [[random.randrange(len(shapes)) for _ in tids] for _ in range(600)]
    clock = Clock()
    one = store(tmp_path, clock)
    began = time.process_time()
    for second in range(0, hours * HOUR, 600):
        snapshots = []
        for step in range(600):
            clock.now = START + second + step + random.random() / 100
            weight = 1 + random.random() / 1_000
            snapshots.append(Sampled(int(clock.now * 1e6), weight, tids, columns[step], connections, none))
        one.add("orders", Batch(shapes, snapshots, digests))
        one.tick()
    one.close()
    seconds = time.process_time() - began
    clock.now = START + (hours + 1) * HOUR
    one.tick()
    parts = files.live_parts(tmp_path)
    total = sum(part.bytes for part in parts)
    day = total * 24 / hours
    samples = hours * HOUR * 100
    assert sum(_native.history_check("samples", part.file("samples")) for part in parts) == samples
    print(
        f"{hours} h: {total / 1e6:.1f} MB in {len(parts)} parts, {total / samples:.2f} bytes per sample, "
        f"{day / 1e6:.0f} MB per day, {seconds:.1f} s of CPU time"
    )
    assert len(parts) == hours
    assert day < 200e6
