"""Profiles and samples of a hostile server fit into the sensor's replies, and do not delay other servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope.common.workers import Workers
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.sample_encoding import decode_samples
from innoscope.daemon.protocol.stack_encoding import decode_chunks
from innoscope.daemon.sensor import replies
from innoscope.daemon.sensor.watch import ServerSlot
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from innoscope.target.model import Query
from unit.snapshots import IDLE, target

if TYPE_CHECKING:
    from collections.abc import Iterator

START: Final = 1_700_000_000
#: A character with the longest escape sequence in JSON: two surrogates, in 12 bytes.
ASTRAL: Final = "\U0001f40d"
_MOST_REQUESTS: Final = 40


@pytest.fixture
def workers() -> Iterator[Workers]:
    shared = Workers(size=1)
    yield shared
    shared.close()


def slots_of(workers: Workers, *names: str) -> dict[str, ServerSlot]:
    return {name: ServerSlot(target(), (), workers) for name in names}


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Check the size of a reply, and return its servers as the agent receives them."""
    text = json.dumps({"ok": reply})
    assert len(text) <= messages.REPLY_BYTES
    servers: dict[str, Any] = json.loads(text)["ok"]["servers"]
    return servers


def hostile_counts(chunk: int, stacks: int, character: str) -> dict[ClassifiedStack, int]:
    """Return counts by stack. Each stack has 100 distinct functions, whose names have 512 characters."""
    return {
        ClassifiedStack.of(
            "other",
            Trust.EXACT,
            tuple(
                Frame(f"{chunk} {stack} {depth} ".ljust(512, character), "m" * 255, depth)
                for depth in range(100)
            ),
        ): stack + 1
        for stack in range(stacks)
    }


def all_chunks(slots: dict[str, ServerSlot]) -> tuple[dict[str, list[Chunk]], int]:
    """Fetch all chunks as the agent does; return them, and the number of requests."""
    found: dict[str, list[Chunk]] = {name: [] for name in slots}
    cursor: dict[str, int] = {}
    for request in range(1, _MOST_REQUESTS):
        reply = replies.profiles(slots.items(), cursor)
        servers = checked(reply)
        for name, body in servers.items():
            found[name] += decode_chunks(body)
        if not reply["more"]:
            return found, request
        cursor = {name: body["cursor"] for name, body in servers.items()}
    raise AssertionError("the cursor does not advance")


@pytest.mark.parametrize("character", ["f", ASTRAL])
def test_large_profiles_are_reduced_and_those_of_other_servers_arrive(
    character: str, workers: Workers
) -> None:
    slots = slots_of(workers, "a", "b", "c", "real")
    real = {ClassifiedStack.of("idle", Trust.EXACT, IDLE): 7}
    for number in range(3):
        at = START + 10 * number
        for stacks, name in ((20, "a"), (40, "b"), (3, "c")):
            slots[name].profiles.add(at, hostile_counts(number, stacks, character))
        slots["real"].profiles.add(at, real)
    found, requests = all_chunks(slots)
    assert requests < 10
    assert [chunk.counts for chunk in found["real"]] == [real] * 2
    assert {name: len(chunks) for name, chunks in found.items()} == dict.fromkeys(slots, 2)
    for chunk in found["b"]:
        assert sum(chunk.counts.values()) == sum(range(41)), "no thread is lost"
        assert chunk.dropped + len(chunk.counts) in (40, 41)
        assert chunk.dropped > 0


def test_stacks_that_an_earlier_chunk_had_no_room_for_are_counted_in_the_next(workers: Workers) -> None:
    slots = slots_of(workers, "a")
    for number in range(4):
        slots["a"].profiles.add(START + 10 * number, hostile_counts(0, 80, ASTRAL))
    found, _ = all_chunks(slots)
    assert len(found["a"]) == 3
    for chunk in found["a"]:
        assert sum(chunk.counts.values()) == sum(range(81)), "no thread is lost"
        assert chunk.dropped > 0


def test_chunks_of_real_servers_are_sent_together(workers: Workers) -> None:
    slots = slots_of(workers, *(f"server {number}" for number in range(50)))
    for number in range(2):
        for slot in slots.values():
            slot.profiles.add(START + 10 * number, {ClassifiedStack.of("idle", Trust.EXACT, IDLE): 7})
    servers = checked(replies.profiles(slots.items(), None))
    assert all(len(body["chunks"]) == 1 for body in servers.values())


def busy(tid: int, name: str) -> tuple[str, ClassifiedStack, Thread]:
    frames = tuple(Frame(f"{depth} {name}", "mysqld", 0) for depth in range(20))
    query = Query(
        1 << 62, name, None, name, "Query", None, None, name, trust="exact", digest_id=f"{tid:032x}"
    )
    thread = Thread(tid, tid, "connection", "S", Trust.EXACT, "row_lock", frames, query=query)
    return "connection", ClassifiedStack.of("row_lock", Trust.EXACT, frames), thread


@pytest.mark.parametrize("character", ["f", "é", ASTRAL])
def test_large_samples_of_several_servers_are_sent_in_turns(character: str, workers: Workers) -> None:
    slots = slots_of(workers, "a", "b", "c", "real")
    for second in range(3):
        for name in ("a", "b", "c"):
            threads = [busy(tid, f"{second} {tid} ".ljust(600, character)) for tid in range(1, 101)]
            slots[name].samples.add(START + second, 1.0, threads)
        slots["real"].samples.add(START + second, 1.0, [busy(1, "real")])
    rows = dict.fromkeys(slots, 0)
    cursor: dict[str, int] = {}
    for request in range(_MOST_REQUESTS):
        reply = replies.samples(slots.items(), cursor)
        servers = checked(reply)
        for name, body in servers.items():
            batch = decode_samples(body, START - 9, START + 9)
            rows[name] += sum(len(one.tids) for one in batch.snapshots)
        cursor |= {name: body["cursor"] for name, body in servers.items()}
        assert rows["real"] == 3 or request == 0
        if not reply["more"]:
            break
    assert rows == {"a": 300, "b": 300, "c": 300, "real": 3}


def test_servers_with_a_large_backlog_delay_only_each_other(workers: Workers) -> None:
    hostile = [f"hostile {number}" for number in range(5)]
    slots = slots_of(workers, *hostile, "real")
    for at in (START, START + 10, START + 20):
        for name in hostile:
            slots[name].profiles.add(at, hostile_counts(at, 12, ASTRAL))
            threads = [busy(tid, f"{at} {tid} ".ljust(600, ASTRAL)) for tid in range(1, 41)]
            slots[name].samples.add(at, 1.0, threads)
    slots["real"].profiles.add(START + 10, {ClassifiedStack.of("idle", Trust.EXACT, IDLE): 7})
    slots["real"].profiles.add(START + 20, {ClassifiedStack.of("idle", Trust.EXACT, IDLE): 7})
    slots["real"].samples.add(START + 20, 1.0, [busy(1, "real")])
    chunks = checked(replies.profiles(slots.items(), None))
    assert len(chunks["real"]["chunks"]) == 1
    assert 0 < sum(len(chunks[name]["chunks"]) for name in hostile) < 10
    samples = checked(replies.samples(slots.items(), None))
    assert len(samples["real"]["snapshots"]) == 1
    assert 0 < sum(len(samples[name]["snapshots"]) for name in hostile) < 15
