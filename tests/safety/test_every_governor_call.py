"""Make every call of the governor, the guard, the attachment and the probe collector fail once.

The calls are found while probes are started, governed and closed, and while the governor recovers from
failures. Within 2 s after a call has failed, the probes must be detached, or the governor must control them.
Afterwards, they must work again.

Each call fails with an OSError, a NativeError, a MemoryError and a panic of the Rust core. In
test_governor_faults.py, some of the calls fail repeatedly.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from innoscope.metrics.collectors import probes as collecting
from innoscope.probes import governor, guard
from innoscope.probes.attachment import Attachment
from safety.call_sites import CallSites, Problems, call_in_thread
from safety.governing import (
    BACK_S,
    WITHIN_S,
    controlled,
    detached,
    holds_within,
    inject,
    links,
    new_collector,
    recovered,
    scrape,
    shorten_pauses,
)
from safety.injecting import ERRORS, Fault
from safety.leftovers import altered
from safety.well import assert_well
from scale import long
from servers import Server
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope.metrics.collectors.probes import ProbesCollector
    from innoscope.probes.governor import Governor
    from safety.call_sites import Site

pytestmark = [
    long("test_governor_faults.py makes some of the calls fail"),
    pytest.mark.timeout(1800),
    # A failing call may end a thread.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

_FILES: Final = (
    "metrics/collectors/probes.py", "probes/attachment.py", "probes/governor.py", "probes/governor_retry.py",
    "probes/guard.py",
)  # fmt: skip
#: Few probes, so that they are attached and detached soon, but some that use each of the optional maps.
_FAMILIES: Final = frozenset({"fsync", "mutex", "spin"})
#: A budget below the cost of these probes.
_BUDGET: Final = 0.000_01
#: Seconds for which the calls of a running governor are recorded.
_FIND_S: Final = 10.0
#: Sets of calls that fail once, so that the governor, the guard and the attachment handle these failures.
_FAILURES: Final = (
    ("attachment.read",), ("_native.detach_all",), ("_native.Uprobe",),
    ("attachment.read", "attachment.disable"),
)  # fmt: skip


class _Calls(NamedTuple):
    """The calls that were found, by the situation in which they fail.

    Those of ``recovering`` and ``restarting`` are made after other failures.
    """

    starting: list[Site]
    restarting: list[Site]
    governing: list[Site]
    recovering: list[tuple[Site, tuple[str, ...]]]
    closing: list[Site]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 4):
        yield server
        assert_well(server)
        # If the guard's thread began to detach before `close`, it finishes detaching afterwards.
        assert holds_within(BACK_S, lambda: altered(server.pid) == set())


@pytest.fixture(scope="module", autouse=True)
def watching() -> Iterator[guard.Guard]:
    """Shorten all times, and start a new guard, whose thread is traced."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten_pauses(monkeypatch, 0.05)
        for name, seconds in (("_TICK_S", 0.05), ("_FIRST_TICK_S", 0.05), ("_CYCLE_S", 0.4)):
            monkeypatch.setattr(governor, name, seconds)
        monkeypatch.setattr(guard, "PERIOD_S", 0.1)
        yield _new_guard(monkeypatch)


def _new_guard(monkeypatch: pytest.MonkeyPatch) -> guard.Guard:
    fresh = guard.Guard()
    for name in ("watch", "unwatch", "ensure_running", "silent_s"):
        monkeypatch.setattr(guard, name, getattr(fresh, name))
    return fresh


@pytest.fixture(scope="module")
def sites() -> Iterator[CallSites]:
    with CallSites(_FILES) as sites:
        yield sites


@pytest.fixture(scope="module")
def calls(server: Server, sites: CallSites) -> _Calls:
    """Start, govern and close probes, make some calls fail meanwhile, and return the calls that were made."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        failing = Fault(Attachment)
        monkeypatch.setattr(collecting, "Attachment", failing)
        found = []
        for fails in (True, False):
            if fails:
                _arm([failing], "OSError")
            collector = _new_collector(server, attach_soon=True)
            assert holds_within(BACK_S, partial(_is_back, collector))
            found.append(sites.take_found())
            if fails:
                collector.close()
                sites.take_found()
        restarting, starting = found
        ruling = collector.start_once()
        with _scraping(collector):
            assert not threading.Event().wait(_FIND_S)
            assert holds_within(BACK_S, partial(recovered, ruling, 1))
        governing = sites.take_found()
        recovering: dict[Site, tuple[str, ...]] = {}
        for names in _FAILURES:
            faults = [inject(collector, name, monkeypatch) for name in names]
            _arm(faults, "OSError")
            assert holds_within(BACK_S, partial(_all_failed, faults))
            assert holds_within(BACK_S, partial(recovered, ruling, ruling.decisions))
            recovering = dict.fromkeys(sites.take_found(), names) | recovering
        call_in_thread(collector.close)
        closing = sites.take_found()
    sites.finding = False
    also = governing | recovering.keys()
    return _Calls(
        sorted(starting - also),
        sorted(restarting - starting - also),
        sorted(governing),
        [(site, names) for site, names in sorted(recovering.items()) if site not in governing],
        sorted(closing - starting - also),
    )


def _new_collector(server: Server, *, attach_soon: bool = False) -> ProbesCollector:
    return new_collector(server, families=_FAMILIES, budget=_BUDGET, attach_soon=attach_soon)


def _arm(faults: Iterable[Fault], error: str) -> None:
    for fault in faults:
        fault.once = True
        fault.arm(ERRORS[error])


def _all_failed(faults: Iterable[Fault]) -> bool:
    return all(fault.failed_at is not None for fault in faults)


@contextmanager
def _scraping(collector: ProbesCollector) -> Iterator[None]:
    """Scrape all the time, as an agent does."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.05):
            scrape(collector)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _assert_safe(ruling: Governor) -> None:
    decisions = ruling.decisions
    safe = holds_within(WITHIN_S, lambda: detached(ruling) or controlled(ruling, decisions))
    assert safe, "attached but not governed"


def _assert_recovers(ruling: Governor, watching: guard.Guard) -> None:
    decisions = ruling.decisions

    def back() -> bool:
        guarded = id(ruling) in watching._watched and watching.silent_s() < WITHIN_S
        return recovered(ruling, decisions) and guarded

    assert holds_within(BACK_S, back), f"not governed and guarded again: {ruling.failures}"


def test_any_failing_call_of_running_probes(
    server: Server, sites: CallSites, calls: _Calls, watching: guard.Guard
) -> None:
    problems = Problems()
    collector = _new_collector(server)
    ruling = collector.start()
    try:
        with _scraping(collector):
            for site, error in product(calls.governing, ERRORS):
                with problems.noting(site, error):
                    sites.arm(site, ERRORS[error])
                    if problems.made(sites, site):
                        _assert_safe(ruling)
                        _assert_recovers(ruling, watching)
    finally:
        collector.close()
    problems.check(len(calls.governing))


def test_any_failing_call_of_a_recovering_governor(
    server: Server, sites: CallSites, calls: _Calls, watching: guard.Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, causes = Problems(), dict(calls.recovering)
    collector = _new_collector(server)
    ruling = collector.start()
    faults = {name: inject(collector, name, monkeypatch) for names in _FAILURES for name in names}
    try:
        for site, error in product(causes, ERRORS):
            with problems.noting(site, error):
                sites.arm(site, ERRORS[error])
                _arm([faults[name] for name in causes[site]], "OSError")
                if problems.made(sites, site):
                    _assert_safe(ruling)
                for fault in faults.values():
                    fault.disarm()
                _assert_recovers(ruling, watching)
    finally:
        collector.close()
    problems.check(len(causes))


def test_any_failing_call_of_starting_probes(
    server: Server, sites: CallSites, calls: _Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, restarting = Problems(), set(calls.restarting)
    failing = Fault(Attachment)
    monkeypatch.setattr(collecting, "Attachment", failing)
    found = [*calls.starting, *calls.restarting]
    for site, error in product(found, ERRORS):
        with problems.noting(site, error):
            if site.file == "probes/guard.py":  # these calls start the guard's thread
                _new_guard(monkeypatch)
            if site in restarting:
                _arm([failing], "OSError")
            sites.arm(site, ERRORS[error])
            collector = _new_collector(server, attach_soon=True)
            try:
                if problems.made(sites, site):
                    assert holds_within(WITHIN_S, partial(_is_safe, collector)), "attached but not governed"
                back = _is_reported if _schedules(site) else _is_back
                assert holds_within(BACK_S, partial(back, collector)), "not started again"
            finally:
                failing.disarm()
                collector.close()
            assert holds_within(WITHIN_S, lambda: links() == 0), "not closed"
    problems.check(len(found))


def _schedules(site: Site) -> bool:
    """Return whether the call schedules a retry.

    If it fails, the probes stay detached, and each scrape reports why they could not be attached.
    """
    return site.function == "on_a_thread" or site.text.startswith("self._attach_on(")


def _is_reported(collector: ProbesCollector) -> bool:
    return collector._failure is not None


def _is_safe(collector: ProbesCollector) -> bool:
    return links() == 0 or (collector._governor is not None and controlled(collector._governor, 0))


def _is_back(collector: ProbesCollector) -> bool:
    """Return whether the probes are governed, or the kernel does not support them, as a NativeError says."""
    if collector._governor is not None:
        return controlled(collector._governor, 0)
    return isinstance(collector._failure, collecting._FINAL)


def test_any_failing_call_of_closing_probes(server: Server, sites: CallSites, calls: _Calls) -> None:
    problems = Problems()
    for site, error in product(calls.closing, ERRORS):
        with problems.noting(site, error):
            collector = _new_collector(server)
            ruling = collector.start()
            try:
                sites.arm(site, ERRORS[error])
                call_in_thread(collector.close)
                if problems.made(sites, site):
                    _assert_safe(ruling)
            finally:
                collector.close()
            assert holds_within(WITHIN_S, lambda: links() == 0), "not closed"
    problems.check(len(calls.closing))
