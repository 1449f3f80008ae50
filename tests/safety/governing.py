"""Probes whose governor attaches and detaches them constantly, faults in it, and what must hold then."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from innoscope.metrics.collectors import probes as collecting
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes import governor, governor_retry
from innoscope.target.discover import find_one
from safety.injecting import Fault
from safety.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from innoscope.probes.governor import Governor
    from servers import Server

#: Maximum seconds after a failure until the probes are detached or controlled again.
WITHIN_S: Final = 2.0
#: Maximum seconds after a failure until the probes work again.
BACK_S: Final = 60.0
FAMILIES: Final = frozenset({"redo", "fsync", "spin"})
#: A budget below the cost of the probes under the load ``Fsync``.
BUDGET: Final = 0.0002


class _Table:
    """A wrapper around a BPF map, in which one method can be made to fail."""

    def __init__(self, real: Any, method: str) -> None:
        self._real = real
        self.fault = Fault(getattr(real, method))
        setattr(self, method, self.fault)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def shorten_pauses(monkeypatch: pytest.MonkeyPatch, pause_s: float = 0.2) -> None:
    """Let the governor and the collector retry after ``pause_s`` seconds."""
    monkeypatch.setattr(governor, "_RETRY_S", pause_s)
    for module in (governor_retry, collecting):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", pause_s)
        monkeypatch.setattr(module, "MAX_PAUSE_S", pause_s)


def new_collector(
    server: Server,
    *,
    families: frozenset[str] = FAMILIES,
    budget: float = BUDGET,
    attach_soon: bool = False,
) -> ProbesCollector:
    """Return a collector whose probes exceed their budget."""
    thread_ids = itertools.count(1)

    def churning() -> dict[int, str]:
        """Return a new thread id at each call, so that each call adds one map entry and deletes another."""
        return {next(thread_ids): "master"}

    return ProbesCollector(
        find_one(server.pid), families=families, budget=budget, kinds=churning, attach_soon=attach_soon
    )


def inject(collector: ProbesCollector, call: str, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Wrap a call, given as OBJECT.NAME. ``map NAME.METHOD`` is a method of one of the attachment's maps."""
    ruling = collector.start_once()
    if call.startswith("map "):
        name, method = call.removeprefix("map ").split(".")
        table = _Table(ruling.attachment._maps[name], method)
        monkeypatch.setitem(ruling.attachment._maps, name, table)
        return table.fault
    where, _, name = call.rpartition(".")
    owners: dict[str, Any] = {
        "attachment": ruling.attachment, "_native": _native, "collecting": collecting, "collector": collector,
        "governor": governor, "governor.totals": ruling.totals, "descriptors": collector._descriptors,
        "selftest": collector._selftest,
    }  # fmt: skip
    fault = Fault(getattr(owners[where], name))
    monkeypatch.setattr(owners[where], name, fault)
    return fault


def links() -> int:
    """Count this process's uprobe links and perf events; a failed test may keep iterator links open."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor has been closed
            kind = os.readlink(one)  # noqa: PTH115
            if kind == "anon_inode:bpf_link":
                found += "link_type:\titer\n" not in Path("/proc/self/fdinfo", one.name).read_text()
            else:
                found += kind == "anon_inode:[perf_event]"
    return found


def detached(ruling: Governor) -> bool:
    """Return whether all probes are detached."""
    return not ruling.attachment.attached and links() == 0


def controlled(ruling: Governor, decisions: int) -> bool:
    """Return whether the governor works, and has decided on the probes since it counted ``decisions``."""
    return ruling.failures.why is None and ruling.alive and ruling.decisions > decisions


def recovered(ruling: Governor, decisions: int) -> bool:
    """Return whether the governor works again, and the kernel refuses no probe."""
    return controlled(ruling, decisions) and not any(point.problem for point in ruling.attachment.points)


def holds_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait at most ``seconds`` until the condition holds, not counting the time spent waiting for a CPU."""
    stopwatch = Stopwatch(os.getpid())
    while not condition():
        if stopwatch.seconds() > seconds:
            return False
        with suppress(BaseException):  # in the agent, the runner handles errors
            time.sleep(0.01)
    return True


def scrape(collector: ProbesCollector) -> None:
    with suppress(BaseException):  # in the agent, collectors.runner turns errors into reasons
        collector.collect()
