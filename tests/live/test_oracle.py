"""On a server that stands still, our stacks are those of gdb and of eu-stack, frame by frame."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope._native import Process
from live import figures, oracle
from live.addresses import AddressSpace, Symbols, plain
from scale import few
from servers import NAMES
from workloads import Idle, RowLock, Sleep

if TYPE_CHECKING:
    from innoscope._native import Frame, Look
    from live.observe import Observatory

#: Share of the threads that must be the same.
FLOOR = 0.99

#: Share of the threads that must not have moved while the oracle looked, or nothing is shown.
AT_REST = 0.9

IDLE, SLEEPERS, WAITERS = 60, 15, 25

#: Servers whose debug info says what the compiler inlined.
WITH_DEBUG_INFO = ("mysql-5.5.9", "mysql-5.6.24", "mariadb-11.4.5")

Stack = tuple["Frame", ...]


def _exact(look: Look) -> dict[int, Stack]:
    return {raw.tid: look.stacks[raw.stack] for raw in look.threads if raw.trust == "exact"}


class Comparison:
    """Our stacks against an oracle's."""

    def __init__(self, process: Process, pid: int) -> None:
        self._space = AddressSpace(pid)
        self._files: dict[str, list[str]] = {}
        for module in process.modules():
            places = [f"/proc/{pid}/root{module.path}", module.path, module.symbols_path]
            self._files[module.path.rpartition("/")[2]] = [place for place in places if place]
        self._symbols: dict[str, Symbols] = {}
        self.frames: Counter[str] = Counter()

    def difference(self, ours: Stack, theirs: list[oracle.Frame], cut: bool) -> str | None:
        """In words, the innermost frame that is not the same; None when all are."""
        theirs = [frame for frame in theirs if not frame.inlined]
        for depth, (frame, other) in enumerate(zip(ours, theirs, strict=False)):
            place = self._space.locate(other.pc)
            here = f"frame {depth}: {frame.function} at {frame.module}+{frame.offset:#x}"
            if (frame.module, frame.offset) != place:
                return f"{here}, not {other.name} at {place[0]}+{place[1]:#x}"
            how = self._names(frame, other.name, place[1] - bool(depth))
            self.frames[how] += 1
            if how == "another name":
                return f"{here}, not {other.name}"
        if len(ours) < len(theirs) or (len(ours) > len(theirs) and not cut):
            outermost = f"outermost {ours[-1].function}, not {theirs[-1].name}"
            return f"{len(ours)} frames, not {len(theirs)}; {outermost}"
        return None

    def _names(self, frame: Frame, theirs: str | None, address: int) -> str:
        ours = frame.function
        if theirs is None:
            return "oracle has none"
        if ours is not None and plain(ours) == plain(theirs):
            return "same name"
        covering = self._covering(frame.module, address)
        if (plain(ours) not in covering) if ours else bool(covering):
            return "another name"
        return "alias" if plain(theirs) in covering else "oracle's does not cover"

    def _covering(self, module: str, address: int) -> set[str]:
        if module not in self._symbols:
            self._symbols[module] = Symbols.of(self._files.get(module, ()))
        return self._symbols[module].covering(address)


@pytest.mark.parametrize(
    "name", few(NAMES, "mysql-5.6.24", reason="gdb and eu-stack take seconds")
)
def test_stacks_are_those_of_the_oracles(observatory: Observatory, name: str) -> None:
    """A thread counts that stood at the same place before and after the oracle stopped the server."""
    server = observatory.server(name)
    with Idle(server, IDLE), Sleep(server, SLEEPERS), RowLock(server, WAITERS):
        process = Process(server.pid, method="bpf")
        root = server.installation.home if server.spec.chroot else Path("/")
        inlined = _exact(Process(server.pid, method="bpf", inlines=True).look())
        before = _exact(process.look())
        by_gdb = oracle.gdb(server.pid, server.installation.mysqld, root)
        between = _exact(process.look())
        by_eu_stack = oracle.eu_stack(server.pid)
        after = _exact(process.look())
        comparison = Comparison(process, server.pid)

    _judge(f"{name}/gdb", comparison, before, by_gdb, between)
    _judge(f"{name}/eu-stack", comparison, between, by_eu_stack, after)
    if name in WITH_DEBUG_INFO:
        rested = [tid for tid in before if before[tid] == between.get(tid) and tid in inlined]
        _judge_inlined(name, [(inlined[tid], by_gdb.by_thread[tid]) for tid in rested])


def _judge(
    subject: str,
    comparison: Comparison,
    before: dict[int, Stack],
    oracles: oracle.Stacks,
    after: dict[int, Stack],
) -> None:
    rested = [tid for tid in before if before[tid] == after.get(tid) and tid in oracles.by_thread]
    comparison.frames.clear()
    differences = []
    for tid in rested:
        found = comparison.difference(before[tid], oracles.by_thread[tid], tid in oracles.cut)
        if found:
            differences.append(f"  {tid}: {found}")
    same = len(rested) - len(differences)
    figures.record(
        "oracle", subject, f"{figures.share(same, len(rested))} threads; frames: {dict(comparison.frames)}",
        same=same, threads=len(rested), frames=dict(comparison.frames), cut=len(oracles.cut),
    )  # fmt: skip
    assert len(rested) >= AT_REST * len(before)
    assert len(rested) >= IDLE + SLEEPERS + WAITERS
    assert same >= FLOOR * len(rested), "\n".join(differences)
    assert comparison.frames["same name"] > len(rested)


def _judge_inlined(name: str, pairs: list[tuple[Stack, list[oracle.Frame]]]) -> None:
    """The functions that have no stack frame of their own are the same, in the same places.

    By the last part of the name: without a linkage name, debug info has no more for a member function.
    """
    calls: Counter[str] = Counter()
    differences = []
    for ours, theirs in pairs:
        names = [_last_part(frame.function) if frame.inlined else "" for frame in ours]
        others = [_last_part(frame.name) if frame.inlined else "" for frame in theirs]
        calls.update(filter(None, names))
        if names != others:
            differences.append(f"  {names}\n  {others}")
    same = len(pairs) - len(differences)
    figures.record(
        "oracle", f"{name}/gdb inlined",
        f"{figures.share(same, len(pairs))} threads; {calls.total()} inlined calls of {len(calls)} functions",
        same=same, threads=len(pairs), calls=calls.total(),
    )  # fmt: skip
    assert len(pairs) >= IDLE + SLEEPERS + WAITERS
    assert same >= FLOOR * len(pairs), "\n".join(differences)


def _last_part(name: str | None) -> str:
    return plain(name or "?").rpartition("::")[2]
