"""Each snapshot is pushed once and in order, even if the receiver fails, and memory is bounded."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

import pprofile
from innoscope.daemon.push.errors import REASONS, PushFailed
from innoscope.daemon.push.pusher import Pusher
from innoscope.daemon.push.queue import BoundedQueue, QueuedProfile
from innoscope.daemon.push.settings import Push
from innoscope.metrics import registry
from innoscope.metrics.collectors.own import Pushes, SensorState, own
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from unit.snapshots import IDLE, ROW_LOCK, target

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.daemon.push.formats import PushRequest

START = 1_700_000_000.0


def unavailable() -> PushFailed:
    """Return the error of a receiver that is down."""
    return PushFailed("unavailable", "it answered 503", remedy="wait")


class World:
    """A pusher with a simulated clock and a receiver that records what it gets."""

    def __init__(self, **settings: object) -> None:
        self.now = 0.0
        self.got: list[tuple[str, tuple[int, int], pprofile.Profile]] = []
        self.attempts: list[float] = []
        self.answers: Callable[[], PushFailed | None] = lambda: None
        self.counts = Pushes()
        self.pusher = Pusher(
            Push(url="http://there", **settings),  # type: ignore[arg-type]
            self.counts,
            sender=self,
            clock=lambda: self.now,
            wall=lambda: START + self.now,
            jitter=lambda _, most: most,
        )

    def post(self, request: PushRequest, timeout_s: float | None = None) -> None:
        del timeout_s
        self.attempts.append(self.now)
        error = self.answers()
        if error is not None:
            raise error
        query = parse_qs(urlsplit(request.target).query)
        span = int(query["from"][0]), int(query["until"][0])
        self.got.append((query["name"][0], span, pprofile.parse(request.body)))

    def feed(self, seconds: float, server: str = "shop", stack: ClassifiedStack | None = None) -> None:
        """Pass ten seconds of snapshots to the pusher every ten seconds, for ``seconds``."""
        end = self.now + seconds
        while self.now < end:
            self.pusher.take(server, target(), [chunk(START + self.now, stack)])
            self.run(10)

    def run(self, seconds: float) -> None:
        """Run the pusher for ``seconds`` on the simulated clock."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.pusher.step())

    @property
    def threads(self) -> int:
        """Return the number of threads in all received profiles: 30 for each chunk."""
        return sum(profile.total for _, _, profile in self.got)


def chunk(start: float, stack: ClassifiedStack | None = None) -> Chunk:
    counts = {
        stack or ClassifiedStack.of("idle", Trust.EXACT, IDLE): 10,
        ClassifiedStack.of("row_lock", Trust.EXACT, ROW_LOCK): 20,
    }
    return Chunk(start, start + 9, 10, 30.0, counts)


def test_each_interval_is_one_profile_and_each_snapshot_is_sent_once() -> None:
    world = World(interval_seconds=60)
    world.feed(600)
    world.run(70)

    assert world.threads == 60 * 30
    assert len(world.got) in (10, 11)
    spans = [span for _, span, _ in world.got]
    assert all(before[1] <= after[0] + 1 for before, after in pairwise(spans))
    assert (world.counts.sent, world.counts.queue_bytes) == (len(world.got), 0)
    assert world.counts.last_success > START
    assert world.counts.bytes > 0


def test_snapshots_from_before_the_start_are_not_sent() -> None:
    world = World(interval_seconds=10)
    world.pusher.take("a", target(), [chunk(START - 100), chunk(START - 9.5), chunk(START - 5)])
    world.run(30)

    assert world.threads == 30


def test_a_backlog_of_the_sensor_is_split_into_intervals() -> None:
    world = World(interval_seconds=60)
    world.pusher.take("a", target(), [chunk(START + 10 * step) for step in range(360)])
    world.run(70)

    assert world.threads == 360 * 30
    assert all(span[1] - span[0] <= 91 for _, span, _ in world.got)


def test_an_upgrade_of_the_server_begins_a_new_profile() -> None:
    world = World(interval_seconds=60)
    world.pusher.take("a", target(), [chunk(START)])
    world.pusher.take("a", target(version=(5, 7), version_text="5.7.44"), [chunk(START + 10)])
    world.run(70)

    versions = [name.split("version=")[1].split(",")[0] for name, _, _ in world.got]
    assert versions == ["5.6.24", "5.7.44"]
    assert world.threads == 60


def hour_of_outage(world: World) -> None:
    world.feed(120)
    before = len(world.got)
    world.answers = unavailable
    world.feed(3600)
    assert len(world.got) == before


def test_an_hour_of_outage_loses_nothing_within_the_memory_limit() -> None:
    world = World(interval_seconds=60)
    hour_of_outage(world)
    attempts, sent = len(world.attempts), len(world.got)
    world.answers = lambda: None
    world.feed(120)
    world.run(70)

    assert world.threads == 384 * 30
    starts = [span[0] for _, span, _ in world.got]
    assert starts == sorted(starts)
    assert all(round(profile.time_nanos / 1e9) == span[0] for _, span, profile in world.got)
    assert (world.counts.dropped_memory, world.counts.queue_bytes) == (0, 0)
    assert attempts < 3600 / 30 + 20  # there are pauses between the attempts
    assert world.counts.failures == {"unavailable": attempts - sent}


def test_an_hour_of_outage_stays_within_memory_and_drops_the_oldest() -> None:
    world = World(interval_seconds=10, memory_bytes=65_536)
    world.answers = unavailable
    tracemalloc.start()
    used = []
    for number in range(360):
        frames = tuple(Frame(f"function_{number}_{step}", "mysqld", step) for step in range(40))
        world.feed(10, stack=ClassifiedStack.of("on_cpu", Trust.EXACT, frames))
        assert world.counts.queue_bytes <= 65_536
        if number in (180, 359):
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    dropped, now = world.counts.dropped_memory, world.now
    world.answers = lambda: None
    world.run(70)

    assert dropped > 100
    assert used[1] < used[0] + 10_000  # the queue was full at both measurements
    assert len(world.got) == 360 - dropped
    assert world.got[0][1][0] == START + 10 * dropped  # the newest profiles remain
    assert world.got[-1][1][1] >= START + now - 11


def test_retries_back_off_up_to_a_minute() -> None:
    world = World(interval_seconds=10)
    world.answers = unavailable
    world.feed(10)
    world.run(400)
    waits = [after - before for before, after in pairwise(world.attempts)]

    assert waits[:7] == pytest.approx([1, 2, 4, 8, 16, 32, 60], abs=0.2)
    assert max(waits) <= 60.2


def test_the_receiver_can_ask_for_a_longer_pause() -> None:
    world = World(interval_seconds=10)
    answers = [PushFailed("busy", "429", remedy="", after_s=25)]
    world.answers = lambda: answers.pop() if answers else None
    world.feed(10)
    world.run(60)

    assert world.attempts[1] - world.attempts[0] == pytest.approx(25, abs=0.2)
    assert len(world.got) == 1


def test_a_refused_profile_is_dropped_and_the_others_are_sent() -> None:
    world = World(interval_seconds=10)
    answers = [PushFailed("refused", "400", remedy="", again=False)]
    world.answers = lambda: answers.pop() if answers else None
    world.feed(30)
    world.run(20)

    assert (len(world.got), world.counts.sent, world.counts.dropped_refused) == (2, 2, 1)
    assert world.counts.failures == {"refused": 1}


def test_a_profile_that_always_fails_is_dropped_in_the_end() -> None:
    world = World(interval_seconds=10)
    world.answers = lambda: None if world.pusher._queue.oldest.start > START else broken  # type: ignore[union-attr]
    broken = PushFailed("error", "500", remedy="")
    world.feed(20)
    world.run(3600)

    assert len(world.got) == 1
    assert world.counts.dropped_refused == 1


def test_errors_of_a_profile_that_the_memory_limit_drops_do_not_count_for_the_next() -> None:
    world = World(interval_seconds=10, memory_bytes=65_536)
    world.answers = lambda: PushFailed("error", "500", remedy="")
    world.feed(3600)

    assert len(world.attempts) > 30
    assert world.counts.dropped_memory > 100
    assert world.counts.dropped_refused == 0


def test_remaining_snapshots_are_sent_at_shutdown() -> None:
    world = World(interval_seconds=600)
    world.feed(50)
    assert world.got == []
    world.pusher.end()
    world.pusher.run()

    assert world.threads == 5 * 30


def test_retries_do_not_delay_the_shutdown() -> None:
    world = World(interval_seconds=600)
    world.feed(50)
    world.answers = unavailable
    world.pusher.end()
    world.pusher.run()

    assert len(world.attempts) == 1


def test_a_full_queue_drops_the_oldest_profiles() -> None:
    queue = BoundedQueue[QueuedProfile](10_000)
    dropped = []
    for number in range(10):
        body = gzip.compress(b"") + bytes(1_500)
        dropped += queue.put(QueuedProfile("a", "mysql", "1", number, number, 1, body))

    assert queue.bytes <= 10_000
    assert [one.start for one in dropped] == list(range(10 - len(queue)))
    assert queue.take().start == len(dropped)


def test_every_push_metric_is_declared() -> None:
    counts = Pushes(failures=dict.fromkeys(REASONS, 0))
    declared = registry.default()
    for sample in own(SensorState(), 0, counts).samples:
        if sample.metric.startswith("push_"):
            allowed = [label.values for label in declared[sample.metric].labels]
            assert all(value in (values or ()) for value, values in zip(sample.labels, allowed, strict=True))
    assert declared["push_failures"].labels[0].values == REASONS
    assert not any(sample.metric.startswith("push_") for sample in own(SensorState(), 0).samples)
