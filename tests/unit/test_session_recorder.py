"""Samples reach the files through the sensor's buffer, the protocol and the agent."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.agent.main import create_folder
from innoscope.daemon.agent.session_hour import SessionHour
from innoscope.daemon.agent.session_recorder import SessionRecorder
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.client import Page, SensorDown, ServerSamples
from innoscope.daemon.protocol.messages import BadMessage
from innoscope.daemon.protocol.sample_encoding import decode_samples, encode_samples
from innoscope.sampling.model import Blocked, Frame, Thread, Trust
from innoscope.sampling.profile_history import ClassifiedStack
from innoscope.sampling.sessions import buffer
from innoscope.sampling.sessions.buffer import SampleBuffer, is_busy
from innoscope.sampling.sessions.model import Batch, Sampled
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from innoscope.target.digests import digest_id
from innoscope.target.model import Query
from unit.session_samples import DIGEST, START, STATEMENT, Clock, batch, rows
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAMES = tuple(Frame(name, "mysqld", 0) for name in ("os_event_wait", "lock_wait", "do_command"))
QUERY = Query(7, "app", None, "shop", "Query", None, None, STATEMENT, trust="exact", digest_id=DIGEST)


def busy(
    tid: int, wait: str = "row_lock", query: Query | None = QUERY
) -> tuple[str, ClassifiedStack, Thread]:
    thread = Thread(tid, tid, "connection", "S", Trust.EXACT, wait, FRAMES, query=query)
    return "connection", ClassifiedStack.of(wait, Trust.EXACT, FRAMES), thread


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def decoded(data: Any) -> Batch:
    return decode_samples(data, START - 100, START + 100)


def test_sample_has_the_fields_of_the_thread_and_its_statement() -> None:
    samples = SampleBuffer()
    samples.add(START, 1.5, [busy(10), busy(11, "fsync_redo", None)])
    _, found = samples.since(0)
    assert decoded(through_json(encode_samples(found))) == found
    (snapshot,) = found.snapshots
    assert snapshot == Sampled(START * 1_000_000, 1.5, [10, 11], [0, 1], [7, None], [None, None])
    names = tuple(frame.label for frame in FRAMES)
    assert found.shapes[0] == (
        "connection", "app", "shop", DIGEST, "Query", "row_lock", None, None, "exact", "exact", names
    )  # fmt: skip
    assert found.shapes[1] == (
        "connection", None, None, None, None, "fsync_redo", None, None, None, "exact", names
    )  # fmt: skip
    assert found.digests == {DIGEST: STATEMENT}


def test_sample_has_the_blocker_with_its_statement_and_the_lock() -> None:
    frames = tuple(Frame(name, "mysqld", 0) for name in ("lock_wait", "do_command"))
    threads = []
    for tid, blocker in ((10, 20), (20, 99), (30, None)):
        text = f"SELECT {tid}"
        query = replace(QUERY, connection_id=tid, digest_text=text, digest_id=digest_id(text))
        thread = replace(busy(tid, query=query)[2], blocked=Blocked(blocker, "index shop.t.PRIMARY"))
        threads.append(("connection", ClassifiedStack.of("row_lock", Trust.EXACT, frames), thread))
    samples = SampleBuffer()
    samples.add(START, 1.0, threads)
    [snapshot], shapes = samples.since(0)[1].snapshots, samples.since(0)[1].shapes
    assert snapshot.blockers == [20, 99, None]
    found = [(shapes[at].object, shapes[at].blocker_digest) for at in snapshot.shapes]
    index = "index shop.t.PRIMARY"
    assert found == [(index, digest_id("SELECT 20")), (index, None), (index, None)]


def test_busy_blocker_without_a_statement_has_its_connection() -> None:
    threads = [busy(10), busy(20, "on_cpu", None), busy(30, "on_cpu", None)]
    waiter = replace(threads[0][2], blocked=Blocked(99, "index shop.t.PRIMARY", thread=20))
    samples = SampleBuffer()
    samples.add(START, 1.0, [(*threads[0][:2], waiter), *threads[1:]])
    [snapshot] = samples.since(0)[1].snapshots
    assert (snapshot.connections, snapshot.blockers) == ([QUERY.connection_id, 99, None], [99, None, None])


def test_thread_is_busy_if_it_executes_a_statement_or_does_not_idle() -> None:
    assert is_busy(busy(1)[2])
    assert is_busy(busy(1, "idle")[2])
    assert is_busy(busy(1, "purge", None)[2])
    assert not is_busy(busy(1, "idle", None)[2])
    assert not is_busy(busy(1, "background_idle", None)[2])


def test_latch_is_the_object_of_a_wait_for_a_latch() -> None:
    frames = tuple(
        Frame(name, "mysqld", 0) for name in ("futex_wait", "rw_lock_s_lock_spin", "btr_cur_search")
    )
    thread = Thread(1, 1, "connection", "S", Trust.EXACT, "mutex_wait", frames)
    samples = SampleBuffer()
    samples.add(START, 1.0, [("connection", ClassifiedStack.of("mutex_wait", Trust.EXACT, frames), thread)])
    assert samples.since(0)[1].shapes[0].object


def test_buffer_returns_each_snapshot_once_also_without_busy_threads() -> None:
    samples = SampleBuffer()
    for second in range(5):
        samples.add(START + second, 1.0, [busy(10)] if second % 2 else [])
    cursor, found = samples.since(0, 1)
    assert len(found.snapshots) == 2  # the second one reaches the limit
    cursor, found = samples.since(cursor)
    assert [one.at // 1_000_000 - START for one in found.snapshots] == [2, 3, 4]
    assert samples.since(cursor) == (cursor, Batch([], [], {}))


def test_cursor_of_an_earlier_sensor_is_valid() -> None:
    first, second = SampleBuffer(), SampleBuffer()
    first.add(START, 1.0, [busy(10)])
    cursor, _ = first.since(0)
    second.add(START + 1, 1.0, [busy(10)])
    assert len(second.since(cursor)[1].snapshots) == 1
    assert len(second.since(cursor + (1 << 62))[1].snapshots) == 1, "the clock was set back"


def test_buffer_is_bounded_by_time_and_by_samples() -> None:
    samples = SampleBuffer(span_s=10, most=50)
    for second in range(100):
        samples.add(START + second, 1.0, [busy(tid) for tid in range(1, 3)])
    assert len(samples.since(0)[1].snapshots) == 11
    samples.add(START + 100, 1.0, [busy(tid) for tid in range(1, 49)])
    assert sum(len(one.tids) for one in samples.since(0)[1].snapshots) <= 50
    samples.add(START - 10_000, 1.0, [busy(1)])  # the clock was set back
    assert len(samples.since(0)[1].snapshots) == 1


def test_statement_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "_MAX_DIGESTS", 10)
    samples = SampleBuffer()
    for number in range(100):
        samples.add(START + number / 100, 1.0, [busy(1, query=replace(QUERY, digest_id=f"{number:032x}"))])
    assert len(samples.since(0)[1].digests) <= 10


def test_names_of_a_hostile_server_do_not_make_a_reply_too_large() -> None:
    samples = SampleBuffer()
    for second in range(3):
        threads = []
        for tid in range(1, 3_001):
            name = f"{second} {tid} " + "\x01" * 500
            query = replace(QUERY, user=name, db=name, digest_id=digest_id(name), digest_text=name * 5)
            threads.append(busy(tid, query=query))
        samples.add(START + second, 1.0, threads)
    cursor, seen = 0, 0
    while True:
        cursor, found = samples.since(cursor)
        if not found.snapshots:
            break
        assert len(json.dumps(encode_samples(found))) < messages.REPLY_BYTES
        assert decoded(through_json(encode_samples(found))) == found
        seen += sum(len(one.tids) for one in found.snapshots)
    assert seen == 9_000


def corrupted(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    data: dict[str, Any] = through_json(encode_samples(batch(START)))
    change(data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("functions"),
        lambda data: data.update(functions=[1]),
        lambda data: data.update(functions=["x" * 20_000] * 4),
        lambda data: data.update(shapes=[[None] * 9]),
        lambda data: data.update(shapes=[[None] * 10 + [0] * 2_000]),
        lambda data: data["shapes"][0].append(99),
        lambda data: data["shapes"][0].append(-1),
        lambda data: data["shapes"][0].append("0"),
        lambda data: data["shapes"][0].__setitem__(0, 7),
        lambda data: data["shapes"][0].__setitem__(0, "x" * 2_000),
        lambda data: data["shapes"][0].__setitem__(1, "\ud800"),
        lambda data: data["shapes"][0].__setitem__(3, "SELECT 'secret'"),
        lambda data: data["shapes"][0].__setitem__(7, "../../etc"),
        lambda data: data["digests"].update({"short": "SELECT ?"}),
        lambda data: data["digests"].update({"0" * 32: None}),
        lambda data: data["digests"].update({"0" * 32: "x" * 2_000}),
        lambda data: data["snapshots"][0].pop(),
        lambda data: data["snapshots"][0].__setitem__(0, True),
        lambda data: data["snapshots"][0].__setitem__(0, 10**30),
        lambda data: data["snapshots"][0].__setitem__(0, 0),
        lambda data: data["snapshots"][0].__setitem__(1, math.nan),
        lambda data: data["snapshots"][0].__setitem__(1, -1.0),
        lambda data: data["snapshots"][0].__setitem__(1, 1e300),
        lambda data: data["snapshots"][0].__setitem__(1, "1"),
        lambda data: data["snapshots"][0].__setitem__(2, [1, 2]),
        lambda data: data["snapshots"][0].__setitem__(2, [1, 2, 1 << 40]),
        lambda data: data["snapshots"][0].__setitem__(2, [1, 2, None]),
        lambda data: data["snapshots"][0].__setitem__(2, {"1": 1}),
        lambda data: data["snapshots"][0].__setitem__(3, [0, 0, 1]),
        lambda data: data["snapshots"][0].__setitem__(3, [0, 0, False]),
        lambda data: data["snapshots"][0].__setitem__(4, [1, 2, 1 << 63]),
        lambda data: data["snapshots"][0].__setitem__(4, [1, 2, -1]),
        lambda data: data["snapshots"][0].__setitem__(5, [1.5, 2, 3]),
    ],
)
def test_hostile_reply_is_rejected(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(BadMessage):
        decoded(corrupted(change))


class FakeSensor:
    """A fake sensor with one server, whose samples are in ``buffer``."""

    def __init__(self) -> None:
        self.buffer = SampleBuffer()
        self.down = False
        self.requests = 0

    def samples(self, cursor: dict[str, int]) -> Page[ServerSamples]:
        self.requests += 1
        if self.down:
            raise SensorDown("the sensor is down")
        after, found = self.buffer.since(cursor.get("mysqld-1", 0), 100)
        return Page({"mysqld-1": after}, {"mysqld-1": ServerSamples(target(), found)}, found.more)


def recorder(folder: Path, sensor: FakeSensor, clock: Clock) -> SessionRecorder:
    (folder / ".lock").unlink(missing_ok=True)  # as if the kernel had released a killed agent's lock
    store = HistoryStore(folder, HistoryLimits(), clock, clock)
    made = SessionRecorder(sensor, lambda _name, _target: "orders", 10, SessionHour(clock=clock), store)
    made.prepare()
    return made


def test_poll_ends_although_snapshots_are_taken_meanwhile(tmp_path: Path) -> None:
    """Fetch only what exists. With many servers, snapshots are added faster than requests are answered."""

    class BusySensor(FakeSensor):
        def samples(self, cursor: dict[str, int]) -> Page[ServerSamples]:
            page = super().samples(cursor)
            self.buffer.add(START + 100 + self.requests, 1.0, [busy(1)])
            return page

    sensor = BusySensor()
    for second in range(3):
        sensor.buffer.add(START + second, 1.0, [busy(tid) for tid in range(1, 101)])
    recorder(tmp_path, sensor, Clock()).poll()
    assert sensor.requests == 4, "three full replies, and one with the rest"


def test_agent_that_restarts_writes_each_sample_once(tmp_path: Path) -> None:
    sensor, clock = FakeSensor(), Clock()
    for second in range(60):
        sensor.buffer.add(START + second, 1.0, [busy(tid) for tid in range(1, 11)])
    first = recorder(tmp_path, sensor, clock)
    first.poll()
    clock.now += 310
    sensor.down = True
    first.poll()
    sensor.down = False
    for second in range(60, 120):
        sensor.buffer.add(START + second, 1.0, [busy(tid) for tid in range(1, 11)])
    first.poll()  # these samples are only in memory when the agent is killed
    second_agent = recorder(tmp_path, sensor, clock)
    ended = threading.Event()
    ended.set()
    second_agent.poll()
    second_agent.run(ended, lambda: None)
    assert rows(tmp_path) == {(START + second, tid): 1 for second in range(120) for tid in range(1, 11)}
    metrics = {sample.metric: sample.value for sample in second_agent.samples()}
    assert metrics["history_samples"] == 600
    assert metrics["history_up"] == 1


def test_agent_started_as_root_creates_the_folder_and_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "agent" / "history"
    create_folder(folder, None)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]
    folder.chmod(0o755)
    create_folder(folder, None)
    assert folder.stat().st_mode & 0o777 == 0o755, "an existing folder is not changed"


def test_server_that_is_not_configured_is_not_recorded(tmp_path: Path) -> None:
    sensor, clock = FakeSensor(), Clock()
    sensor.buffer.add(START, 1.0, [busy(1)])
    store = HistoryStore(tmp_path, HistoryLimits(), clock, clock)
    one = SessionRecorder(sensor, lambda _name, _target: None, 10, SessionHour(), store)
    one.prepare()
    one.poll()
    clock.now += 310
    one.poll()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_folder_that_is_not_writable_at_the_start_is_retried(tmp_path: Path) -> None:
    sensor, clock = FakeSensor(), Clock()
    folder = tmp_path / "disk" / "history"
    folder.parent.touch()  # a file, so that even root cannot create the directory
    store = HistoryStore(folder, HistoryLimits(), clock, clock)
    hour = SessionHour(clock=clock)
    one = SessionRecorder(sensor, lambda _name, _target: "orders", 10, hour, store, clock)
    ended = threading.Event()

    def record(second: int) -> dict[str, Any]:
        sensor.buffer.add(START + second, 1.0, [busy(1), busy(2)])
        one.prepare()
        one.poll()
        return {sample.metric: sample.value for sample in one.samples()}

    assert record(0)["history_up"] == 0
    folder.parent.unlink()
    clock.now += 59
    found = record(59)
    assert (found["history_up"], found["history_lost_samples"]) == (0, 4)
    clock.now += 1
    found = record(60)
    assert (found["history_up"], found["history_lost_samples"]) == (1, 4)
    ended.set()
    one.run(ended, lambda: None)
    assert rows(folder) == {(START + 60, 1): 1, (START + 60, 2): 1}


def test_samples_are_in_memory_also_without_a_store() -> None:
    sensor, hour = FakeSensor(), SessionHour(clock=Clock(START + 60))
    for second in range(60):
        sensor.buffer.add(START + second, 1.0, [busy(1), busy(2, "fsync_redo", None)])
    one = SessionRecorder(sensor, lambda _name, _target: "orders", 10, hour, None)
    one.prepare()
    one.poll()
    one.poll()
    assert sum(step.weight for step in hour.between("orders", START, START + 60)) == 60
    assert one.samples() == []
