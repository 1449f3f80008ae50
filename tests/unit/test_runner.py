"""Collectors run concurrently; one that hangs or fails delays no others. Every failure has a reason."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from innoscope.common import workers as module
from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights, NoSuchProcess
from innoscope.common.samples import Sample
from innoscope.common.workers import Workers
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.runner import Runner, explain
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATIENCE_S = 30.0


class Collecting:
    """A collector that calls the given function."""

    def __init__(self, name: str, act: Callable[[], Iterable[Sample]], timeout: float = PATIENCE_S) -> None:
        self.name = name
        self.timeout = timeout
        self._act = act

    def collect(self) -> Iterable[Sample]:
        return self._act()


def fine() -> list[Sample]:
    return [Sample("mysqld_up", 1)]


def raising(error: BaseException) -> Callable[[], Iterable[Sample]]:
    def act() -> Iterable[Sample]:
        raise error

    return act


class Gate:
    """A collector's function that waits until the test opens the gate."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.passed = threading.Event()
        self.reached = threading.Event()
        self.entered = 0

    def __call__(self) -> Iterable[Sample]:
        self.entered += 1
        self.reached.set()
        self.open.wait(2 * PATIENCE_S)
        self.passed.set()
        return fine()


def test_an_outcome_has_samples_success_and_duration() -> None:
    (outcome,) = Runner([Collecting("process", fine)]).run()

    assert (outcome.collector, outcome.success, outcome.reason) == ("process", True, None)
    assert outcome.samples == (Sample("mysqld_up", 1),)
    assert 0 <= outcome.seconds < 1


def test_a_hanging_collector_times_out_and_the_others_answer() -> None:
    gate = Gate()
    runner = Runner([Collecting("memory", gate, timeout=0.05), Collecting("process", fine)])
    began = time.monotonic()
    hanging, good = runner.run()
    gate.open.set()

    assert time.monotonic() - began < PATIENCE_S
    assert (hanging.success, hanging.samples) == (False, ())
    assert hanging.reason == "timeout: no answer within 0.05 s"
    assert good.success


def test_a_collector_that_still_hangs_is_not_started_again() -> None:
    gate = Gate()
    runner = Runner([Collecting("memory", gate, timeout=0.01)])
    runner.run()
    assert gate.reached.wait(PATIENCE_S)
    (again,) = runner.run()
    entered = gate.entered
    gate.open.set()

    assert entered == 1
    assert again.reason is not None
    assert again.reason.startswith("timeout: still running after ")
    assert again.seconds >= 0.01


def test_a_caller_can_wait_less_than_the_collectors_timeout() -> None:
    """Use a collector that is slower than the caller's patience, but within its own timeout."""
    gate = Gate()
    runner = Runner([Collecting("memory", gate), Collecting("process", fine)])
    runner.start()
    until(lambda: runner.outcomes(patience_s=0.05)[1].success)
    slow_run, good = runner.outcomes(patience_s=0.05)
    gate.open.set()

    assert slow_run.reason == "timeout: no answer within 0.05 s"
    assert good.success


def test_slow_servers_do_not_delay_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the fast collector finishes although more slow runs are waiting than there are threads."""
    monkeypatch.setattr(module, "QUICK_S", PATIENCE_S)
    workers, gate = Workers(size=2), Gate()
    quick = Runner([Collecting("memory", fine)], workers)
    assert quick.run()[0].success  # after its first run, the collector is known to be fast
    slow = [Runner([Collecting("memory", gate, timeout=0.01)], workers) for _ in range(3)]
    for runner in slow:
        runner.start()
    assert gate.reached.wait(PATIENCE_S)

    (outcome,) = quick.run()
    gate.open.set()
    workers.close()

    assert outcome.success


def test_servers_of_other_owners_take_turns_with_slow_ones() -> None:
    """Start the runs of an owner's twelve slow servers first. No run ends until all have been requested."""
    workers, began, started = Workers(size=1), list[str](), threading.Event()

    def collecting(owner: str) -> Callable[[], Iterable[Sample]]:
        def act() -> Iterable[Sample]:
            began.append(owner)
            started.wait(PATIENCE_S)
            return fine()

        return act

    slow = [Runner([Collecting("memory", collecting("slow"))], workers, "", "uid 1") for _ in range(12)]
    honest = Runner([Collecting("memory", collecting("honest"))], workers, "", "uid 2")
    for runner in (*slow, honest):
        runner.start()
    started.set()

    assert honest.outcomes()[0].success
    assert began.index("honest") <= 2
    for runner in slow:
        runner.close()
    workers.close(PATIENCE_S)


def test_closing_a_runner_removes_its_waiting_runs() -> None:
    workers, gate = Workers(size=1), Gate()
    busy = Runner([Collecting("memory", gate, timeout=0.01)], workers)
    waiting = Runner([Collecting("memory", gate)], workers)
    busy.start()
    assert gate.reached.wait(PATIENCE_S)
    waiting.start()
    waiting.close()
    assert not workers._lanes["memory", False].waiting
    gate.open.set()
    workers.close(PATIENCE_S)
    assert gate.entered == 1


def test_a_collector_that_recovers_is_run_again() -> None:
    gate = Gate()
    runner = Runner([Collecting("memory", gate, timeout=0.01)])
    runner.run()
    gate.open.set()
    assert gate.passed.wait(PATIENCE_S)
    until(lambda: runner.run()[0].success)  # the thread becomes idle shortly after the gate opens

    assert gate.entered >= 2


def test_collectors_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def meet() -> list[Sample]:
        meeting.wait(PATIENCE_S)
        return fine()

    outcomes = Runner([Collecting(f"c{number}", meet) for number in range(3)]).run()

    assert all(outcome.success for outcome in outcomes)


def test_a_generator_that_fails_midway_is_a_failure() -> None:
    def some() -> Iterable[Sample]:
        yield Sample("mysqld_up", 1)
        raise CollectorFailed("denied", "access denied for ann")

    (outcome,) = Runner([Collecting("sql", some)]).run()

    assert (outcome.success, outcome.samples) == (False, ())
    assert outcome.reason == "denied: access denied for ann"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CollectorFailed("stopped", "it is stopped"), "stopped: it is stopped"),
        (PermissionError(1, "Operation not permitted"), "rights: PermissionError: [Errno 1]"),
        (PermissionError(13, "Permission denied"), "rights: "),
        (ProcessLookupError(3, "No such process"), "gone: "),
        (NoSuchProcess("7 has exited", remedy="innoscope targets"), "gone: 7 has exited (innoscope targets)"),
        (NoRights("not root"), "rights: not root"),
        (KernelUnable("no BPF"), "unsupported: no BPF"),
        (InnoscopeError("odd"), "error: odd"),
        (ZeroDivisionError("division by zero"), "error: ZeroDivisionError: division by zero"),
        (SystemExit(3), "error: SystemExit: 3"),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_reason(error: BaseException, reason: str) -> None:
    (outcome,) = Runner([Collecting("memory", raising(error))]).run()

    assert outcome.reason is not None
    assert outcome.reason.startswith(reason)
    assert explain(error)[0] == reason.partition(":")[0]


def test_an_unexpected_error_is_logged_once_per_message(caplog: pytest.LogCaptureFixture) -> None:
    errors = [ValueError("one"), ValueError("one"), ValueError("two"), CollectorFailed("gone", "foreseen")]
    left = iter(errors)

    def act() -> Iterable[Sample]:
        raise next(left)

    runner = Runner([Collecting("memory", act)])
    with caplog.at_level(logging.ERROR):
        for _ in errors:
            runner.run()

    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["one", "two"]


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    runner = Runner([Collecting("process", fine), Collecting("waits", fine)])
    runner.run()
    assert set(threading.enumerate()) - before
    runner.close()
    until(lambda: set(threading.enumerate()) <= before)
