"""The one-hour profile history has exact counts and bounded memory, and can be rendered in every format."""

from __future__ import annotations

import json
import tracemalloc

from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack, ProfileHistory, report
from innoscope.sampling.render import encode
from unit.snapshots import IDLE, ROW_LOCK, target

IDLING = ClassifiedStack.of("idle", Trust.EXACT, IDLE)
LOCKED = ClassifiedStack.of("row_lock", Trust.EXACT, ROW_LOCK)
TORN = ClassifiedStack.of("row_lock", Trust.TORN, ROW_LOCK)
CALLERS = tuple(Frame(f"caller_{step}", "mysqld", step) for step in range(20))


def made_up(number: int) -> ClassifiedStack:
    """Return stack ``number`` of an endless series, whose stacks differ only in the innermost function."""
    return ClassifiedStack.of(
        "on_cpu", Trust.EXACT, (Frame(f"function_number_{number}", "mysqld", number), *CALLERS)
    )


def test_snapshots_are_added_up() -> None:
    profiles = ProfileHistory()
    for second in range(25):
        profiles.add(1_000.0 + second, {IDLING: 10, LOCKED: second % 2}, snapshot_ms=4.0)
    whole = profiles.between(0, 2_000)

    assert (whole.start, whole.end, whole.snapshots, whole.snapshot_ms) == (1_000.0, 1_024.0, 25, 100.0)
    assert whole.counts == {IDLING: 250, LOCKED: 12}
    assert whole.dropped == 0


def test_an_interval_contains_the_chunks_it_overlaps() -> None:
    profiles = ProfileHistory()
    for second in range(60):
        profiles.add(1_000.0 + second, {IDLING: 1})

    assert profiles.between(1_010, 1_019).counts == {IDLING: 10}
    assert profiles.between(1_015, 1_021).counts == {IDLING: 20}
    assert profiles.between(5_000, 6_000) == Chunk(0.0, 0.0, 0, 0.0, {})


def test_stacks_with_the_same_functions_are_one_stack() -> None:
    other = tuple(Frame(frame.function, frame.module, frame.offset + 5) for frame in IDLE)
    profiles = ProfileHistory()
    profiles.add(1_000.0, {IDLING: 1})
    profiles.add(1_001.0, {ClassifiedStack.of("idle", Trust.EXACT, other): 1})

    assert profiles.between(0, 2_000).counts == {IDLING: 2}


def test_old_chunks_and_their_stacks_are_removed() -> None:
    profiles = ProfileHistory(span_s=60, chunk_s=10)
    profiles.add(1_000.0, {LOCKED: 5})
    for second in range(1_010, 1_200):
        profiles.add(float(second), {IDLING: 1})
    whole = profiles.between(0, 2_000)

    assert whole.counts.keys() == {IDLING}
    assert whole.start >= 1_199 - 60 - 20
    assert len(profiles._stacks) == len(profiles._ids) == 1


def test_complete_chunks_are_returned_once_and_in_order() -> None:
    profiles = ProfileHistory()
    cursor, nothing = profiles.since(0)
    assert nothing == []
    for second in range(35):
        profiles.add(1_000.0 + second, {IDLING: 1})
    cursor, first = profiles.since(cursor, most=2)
    cursor, second_part = profiles.since(cursor, most=2)
    after, rest = profiles.since(cursor)

    assert [chunk.start for chunk in first] == [1_000.0, 1_010.0]
    assert [chunk.start for chunk in second_part] == [1_020.0]
    assert (after, rest) == (cursor, []), "the incomplete chunk is not returned"


def test_a_cursor_is_valid_after_a_restart() -> None:
    before, after = ProfileHistory(), ProfileHistory()
    before.add(1_000.0, {IDLING: 1})
    before.add(1_010.0, {IDLING: 1})
    cursor, _ = before.since(0)
    after.add(1_020.0, {LOCKED: 1})
    after.add(1_030.0, {LOCKED: 1})

    assert [chunk.counts for chunk in after.since(cursor)[1]] == [{LOCKED: 1}]


def test_setting_the_clock_back_loses_no_snapshots() -> None:
    profiles = ProfileHistory()
    for moment in (1_000.0, 1_020.0, 940.0, 950.0):
        profiles.add(moment, {IDLING: 1})

    assert profiles.between(0, 2_000).counts == {IDLING: 4}


def test_chunks_can_be_added_to_another_history() -> None:
    sensor, agent = ProfileHistory(), ProfileHistory()
    for second in range(30):
        sensor.add(1_000.0 + second, {IDLING: 2, TORN: 1}, snapshot_ms=5.0)
    for chunk in sensor.since(0)[1]:
        agent.add_chunk(chunk)

    assert agent.between(0, 2_000) == sensor.between(0, 1_019)


def test_the_rarest_stacks_are_merged_and_counted() -> None:
    profiles = ProfileHistory(most_stacks=100)
    for second in range(300):
        profiles.add(1_000.0 + second, {IDLING: 500, LOCKED: 20, made_up(second): 1})
    whole = profiles.between(0, 2_000)

    assert len(whole.counts) <= 101
    assert (whole.counts[IDLING], whole.counts[LOCKED]) == (150_000, 6_000)
    assert sum(whole.counts.values()) == 300 * 521, "every thread is counted somewhere"
    assert whole.dropped > 150
    (rare,) = [stack for stack in whole.counts if stack.labels == ("[rare stacks]",)]
    assert (rare.wait, whole.counts[rare]) == ("on_cpu", whole.dropped)
    assert any("rare stacks" in note for note in report(target(), whole).notes)


def test_memory_stays_within_10_mb() -> None:
    """Store an hour of 1,000 threads at 1 Hz: 500 stacks, of which a fifth changes every 10 seconds."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        profiles = ProfileHistory()
        steady = [made_up(number) for number in range(400)]
        for second in range(0, 3_900, 10):  # chunks with more snapshots would only have higher counts
            counts = dict.fromkeys(steady, 2)
            counts |= {made_up(1_000 + second * 10 + number): 2 for number in range(100)}
            profiles.add(1_000.0 + second, counts)
        used = (tracemalloc.get_traced_memory()[0] - before) / 1e6
    finally:
        tracemalloc.stop()
    whole = profiles.between(0, 1e12)

    assert used <= 10
    assert sum(whole.counts.values()) == whole.snapshots * 1_000
    assert 360 <= whole.snapshots <= 362


def test_reports_count_all_snapshots_of_an_interval() -> None:
    profiles = ProfileHistory()
    for second in range(12):
        profiles.add(1_000.0 + second, {IDLING: 3, LOCKED: 1, TORN: 1}, snapshot_ms=4.0)
    whole = report(target(), profiles.between(0, 2_000))
    folded, document = encode(whole, "folded"), json.loads(encode(whole, "json"))

    assert b";my_net_read;vio_io_wait;poll 36\n" in folded
    assert b"[torn];do_command;" in folded
    assert (document["looks"], document["tally"]["threads"]) == (12, 60)
    assert document["waits"] == {"idle": 36, "row_lock": 24}
    assert document["stacks"][1]["trust"] == {"exact": 12, "torn": 12}
