"""The number of shared threads is bounded, and a hanging job does not block other jobs forever."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from innoscope.common import workers as module
from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Job, Workers
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 10


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
    done: list[int] = []
    used = set()

    def work(number: int) -> None:
        used.add(threading.get_ident())
        done.append(number)

    for number in range(100):
        workers.submit(Job("memory", str(number), lambda number=number: work(number)))  # type: ignore[misc]
    until(lambda: len(done) == 100, within_s=PATIENCE_S)

    assert sorted(done) == list(range(100))
    assert len(used) <= 2
    assert workers.threads() <= 2


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
    time.sleep(0.1)
    assert workers.threads() == 6
    other = threading.Event()
    workers.submit(Job("process", "good", other.set))
    assert other.wait(PATIENCE_S), "another kind has its own threads"
    gate.set()
    until(lambda: not workers.stuck(), within_s=PATIENCE_S)
    until(lambda: workers.threads() <= 4, within_s=PATIENCE_S)


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


def test_delayed_jobs_run_in_order_and_on_time(workers: Workers) -> None:
    done: list[str] = []
    now = time.monotonic()
    workers.submit_at(now + 0.2, Job("memory", "b", lambda: done.append("b")))
    workers.submit_at(now + 0.1, Job("memory", "a", lambda: done.append("a")))
    until(lambda: len(done) == 2, within_s=PATIENCE_S)

    assert done == ["a", "b"]
    assert 0.2 <= time.monotonic() - now < 1


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
