"""The number of shared threads is bounded, and a hanging job does not block other jobs forever."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from innoscope.common import workers as module
from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Job, Workers
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(module, "STUCK_S", 0.05)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    workers = Workers(size=2, stuck_after={"attach": 60.0})
    Supervisor().start("workers", workers.run, PATIENCE_S)
    yield workers
    workers.close()


def wait(gate: threading.Event) -> None:
    gate.wait(PATIENCE_S)


def test_a_hundred_servers_share_two_threads_of_a_kind(workers: Workers) -> None:
    """Use jobs that count as stuck only after a minute, because stuck jobs get additional threads."""
    done: list[int] = []
    used = set()

    def work(number: int) -> None:
        used.add(threading.get_ident())
        done.append(number)

    for number in range(100):
        workers.submit(Job("attach", str(number), lambda number=number: work(number)))  # type: ignore[misc]
    until(lambda: len(done) == 100, within_s=PATIENCE_S)

    assert sorted(done) == list(range(100))
    assert len(used) <= 2
    assert workers.threads() <= 2


def test_owners_take_turns(workers: Workers) -> None:
    """Let one owner submit 60 jobs before the others submit any."""
    gate, done = threading.Event(), list[str]()
    one = Workers(size=1)
    one.submit(Job("layouts", "first", partial(wait, gate)))
    for turn in ["hostile"] * 60 + ["a", "a", "b"]:
        one.submit(Job("layouts", turn, partial(done.append, turn), turn=turn))
    gate.set()
    until(lambda: len(done) == 63, within_s=PATIENCE_S)
    one.close()
    assert sorted(done[:3]) == ["a", "b", "hostile"]
    assert done[3:5] in (["hostile", "a"], ["a", "hostile"])
    assert set(done[5:]) == {"hostile"}


def test_a_group_counts_as_one_turn() -> None:
    """Let 60 containers submit one job each before a user submits three."""
    gate, done = threading.Event(), list[str]()
    one = Workers(size=1)
    one.submit(Job("snapshots", "first", partial(wait, gate)))
    for turn in [*(f"container/{number}" for number in range(60)), "uid 27", "uid 27", "uid 27"]:
        one.submit(Job("snapshots", turn, partial(done.append, turn), turn=turn))
    gate.set()
    until(lambda: len(done) == 63, within_s=PATIENCE_S)
    one.close()
    assert done[:6].count("uid 27") == 3
    assert len(set(done)) == 61


def test_members_of_a_group_take_turns() -> None:
    gate, done = threading.Event(), list[str]()
    one = Workers(size=1)
    one.submit(Job("snapshots", "first", partial(wait, gate)))
    for turn in [*["container/a"] * 20, "container/b"]:
        one.submit(Job("snapshots", turn, partial(done.append, turn), turn=turn))
    gate.set()
    until(lambda: len(done) == 21, within_s=PATIENCE_S)
    one.close()
    assert "container/b" in done[:2]


def test_stuck_jobs_are_listed_and_their_threads_replaced_up_to_a_bound(workers: Workers) -> None:
    gate, done = threading.Event(), threading.Event()
    for number in range(4):
        workers.submit(Job("memory", f"stuck{number}", partial(wait, gate)))
    workers.submit(Job("memory", "good", done.set))
    assert done.wait(PATIENCE_S)
    until(lambda: len(workers.stuck()) == 4, within_s=PATIENCE_S)

    assert {one.owner for one in workers.stuck()} == {f"stuck{number}" for number in range(4)}
    for number in range(20):
        workers.submit(Job("memory", f"more{number}", partial(wait, gate)))
    until(lambda: len(workers.stuck()) == 6, within_s=PATIENCE_S)
    other = threading.Event()
    # The job starts after at least one more check of the threads.
    workers.submit_at(time.monotonic() + 0.1, Job("process", "good", other.set))
    assert other.wait(PATIENCE_S), "another kind has its own threads"
    assert workers.threads() == 6 + 1
    gate.set()
    until(lambda: not workers.stuck(), within_s=PATIENCE_S)
    until(lambda: workers.threads() <= 4, within_s=PATIENCE_S)


def test_stuck_jobs_of_an_owner_leave_threads_for_others(workers: Workers) -> None:
    """Let each of three owners submit ten jobs that get stuck; the maximum is six threads."""
    gate = threading.Event()
    for turn, threads in (("a", 3), ("b", 2), ("c", 1)):
        honest = threading.Event()
        workers.submit(Job("memory", "honest", honest.set, turn="honest"))
        assert honest.wait(PATIENCE_S), f"no thread is left before {turn}"
        for number in range(10):
            workers.submit(Job("memory", f"{turn}{number}", partial(wait, gate), turn=turn))
        until(partial(_has_stuck, workers, turn, threads), within_s=PATIENCE_S)
    time.sleep(0.1)
    assert Counter(one.owner[0] for one in workers.stuck()) == {"a": 3, "b": 2, "c": 1}
    gate.set()


def test_a_group_gets_at_most_half_of_the_threads(workers: Workers) -> None:
    """Let the jobs of 20 containers get stuck. There are two threads, and at most six with replacements."""
    gate, honest = threading.Event(), threading.Event()
    for number in range(20):
        workers.submit(Job("memory", "hostile", partial(wait, gate), turn=f"container/{number}"))
    workers.submit(Job("memory", "honest", honest.set, turn="uid 27"))
    assert honest.wait(PATIENCE_S)
    until(lambda: len(workers.stuck()) == 3, within_s=PATIENCE_S)
    time.sleep(0.1)
    assert len(workers.stuck()) == 3

    for number in range(20):
        workers.submit(Job("memory", "mysql", partial(wait, gate), turn=f"uid {number}"))
    until(lambda: len(workers.stuck()) == 6, within_s=PATIENCE_S)
    gate.set()


def test_a_job_outside_the_group_starts_at_once(workers: Workers) -> None:
    gate, honest = threading.Event(), threading.Event()
    for number in range(20):
        workers.submit(Job("attach", "hostile", partial(wait, gate), turn=f"container/{number}"))
    workers.submit(Job("attach", "honest", honest.set, turn="uid 27"))
    assert honest.wait(PATIENCE_S / 2), "the group has all threads, and they are not stuck for a minute"
    gate.set()


def _has_stuck(workers: Workers, turn: str, number: int) -> bool:
    return sum(one.owner.startswith(turn) for one in workers.stuck()) == number


def test_one_owner_uses_all_threads_of_a_kind(workers: Workers) -> None:
    together, done = threading.Barrier(2), threading.Semaphore(0)

    def work() -> None:
        together.wait(PATIENCE_S)
        done.release()

    for number in range(6):
        workers.submit(Job("attach", str(number), work, turn="only"))
    assert all(done.acquire(timeout=PATIENCE_S) for _ in range(6))


def test_a_cancelled_job_does_not_run(workers: Workers) -> None:
    gate, done = threading.Event(), list[str]()
    for _ in range(2):
        workers.submit(Job("attach", "first", partial(wait, gate)))
    cancelled = Job("attach", "cancelled", partial(done.append, "cancelled"))
    workers.submit(cancelled)
    workers.submit(Job("attach", "last", partial(done.append, "last")))
    workers.cancel(cancelled)
    workers.cancel(cancelled)
    gate.set()
    until(lambda: bool(done), within_s=PATIENCE_S)
    assert done == ["last"]


def test_jobs_of_a_slow_kind_are_not_stuck(workers: Workers) -> None:
    gate, third = threading.Event(), threading.Event()
    for number in range(2):
        workers.submit(Job("attach", f"compiling{number}", partial(wait, gate)))
    workers.submit(Job("attach", "third", third.set))

    assert not third.wait(0.3), "two jobs are running, and no third may start"
    assert workers.stuck() == []
    gate.set()
    assert third.wait(PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_replaced_and_its_job_is_notified(workers: Workers) -> None:
    lost, done = threading.Event(), threading.Event()

    def die() -> None:
        raise SystemExit

    workers.submit(Job("memory", "one", die, lost.set))
    assert lost.wait(PATIENCE_S)
    workers.submit(Job("memory", "two", done.set))
    assert done.wait(PATIENCE_S)


def test_jobs_wait_while_no_thread_can_be_started(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        workers.submit(Job("memory", "one", done.set))
        assert workers.threads() == 0
    assert done.wait(PATIENCE_S)


def test_delayed_jobs_run_in_order_and_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread: if both jobs are late, two threads may run them in either order.

    The threads are checked only once an hour, so that no check wakes up in time to start the jobs.
    """
    monkeypatch.setattr(module, "_CHECK_S", 3600.0)
    workers, done = Workers(size=1), list[str]()
    Supervisor().start("workers", workers.run, PATIENCE_S)
    now = time.monotonic()
    workers.submit_at(now + 0.2, Job("memory", "b", lambda: done.append("b")))
    workers.submit_at(now + 0.1, Job("memory", "a", lambda: done.append("a")))
    until(lambda: len(done) == 2, within_s=PATIENCE_S)

    assert done == ["a", "b"]
    assert time.monotonic() - now >= 0.2
    workers.close()


def test_closing_waits_for_running_jobs_up_to_its_timeout() -> None:
    workers, begun, gate = Workers(size=1), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        wait(gate)

    workers.submit(Job("memory", "a", work))
    assert begun.wait(PATIENCE_S)
    began = time.monotonic()
    workers.close(0.1)
    assert 0.1 <= time.monotonic() - began < PATIENCE_S / 2
    gate.set()
    workers.close(PATIENCE_S)
    assert workers.threads() == 0
