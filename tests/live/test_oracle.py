"""Test that the stacks of threads at rest equal those of gdb and eu-stack, frame by frame."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from innoscope._native import Process
from live import oracle
from live.addresses import AddressSpace, Symbols, plain
from scale import few
from servers import NAMES
from workloads import Idle, RowLock, Sleep

if TYPE_CHECKING:
    from innoscope._native import Frame, RawSnapshot
    from live.observe import Observatory

#: Minimum share of threads whose stacks are equal.
FLOOR = 0.99

#: Minimum share of threads whose stacks did not change while the oracle ran.
AT_REST = 0.9

IDLE, SLEEPERS, WAITERS = 60, 15, 25

#: Servers whose debug information contains inlined calls.
WITH_DEBUG_INFO = ("mysql-5.5.9", "mysql-5.6.24", "mariadb-11.4.5")

Stack = tuple["Frame", ...]


def _exact(snapshot: RawSnapshot) -> dict[int, Stack]:
    return {
        raw.tid: snapshot.stacks[raw.stack] for raw in snapshot.threads if raw.trust in ("exact", "inferred")
    }


class Comparison:
    """A comparison of Innoscope's stacks with those of an oracle (gdb or eu-stack)."""

    def __init__(self, process: Process, pid: int) -> None:
        self._space = AddressSpace(pid)
        self._files: dict[str, list[str]] = {}
        for module in process.modules():
            places = [f"/proc/{pid}/root{module.path}", module.path, module.symbols_path]
            self._files[module.path.rpartition("/")[2]] = [place for place in places if place]
        self._symbols: dict[str, Symbols] = {}
        self.frames: Counter[str] = Counter()

    def difference(self, ours: Stack, theirs: list[oracle.Frame], cut: bool) -> str | None:
        """Describe the innermost frame that differs; return None if all frames are equal."""
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


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
@pytest.mark.parametrize("name", few(NAMES, "mysql-5.6.24", reason="gdb and eu-stack take seconds"))
def test_stacks_equal_those_of_gdb_and_eu_stack(observatory: Observatory, name: str, method: str) -> None:
    """Compare only threads with the same stack before and after the oracle stopped the server."""
    server = observatory.server(name)
    with Idle(server, IDLE), Sleep(server, SLEEPERS), RowLock(server, WAITERS):
        process = Process(server.pid, method=method)
        root = server.installation.home if server.spec.chroot else Path("/")
        inlined = _exact(Process(server.pid, method=method, inlines=True).take_snapshot())
        before = _exact(process.take_snapshot())
        by_gdb = oracle.gdb(server.pid, server.installation.mysqld, root)
        between = _exact(process.take_snapshot())
        by_eu_stack = oracle.eu_stack(server.pid)
        after = _exact(process.take_snapshot())
        comparison = Comparison(process, server.pid)

    _judge(comparison, before, by_gdb, between)
    _judge(comparison, between, by_eu_stack, after)
    if name in WITH_DEBUG_INFO:
        rested = [tid for tid in before if before[tid] == between.get(tid) and tid in inlined]
        _judge_inlined([(inlined[tid], by_gdb.by_thread[tid]) for tid in rested])


def _judge(
    comparison: Comparison, before: dict[int, Stack], oracles: oracle.Stacks, after: dict[int, Stack]
) -> None:
    rested = [tid for tid in before if before[tid] == after.get(tid) and tid in oracles.by_thread]
    comparison.frames.clear()
    differences = []
    for tid in rested:
        found = comparison.difference(before[tid], oracles.by_thread[tid], tid in oracles.cut)
        if found:
            differences.append(f"  {tid}: {found}")
    same = len(rested) - len(differences)
    assert len(rested) >= AT_REST * len(before)
    assert len(rested) >= IDLE + SLEEPERS + WAITERS
    assert same >= FLOOR * len(rested), "\n".join(differences)
    assert comparison.frames["same name"] > len(rested)


def _judge_inlined(pairs: list[tuple[Stack, list[oracle.Frame]]]) -> None:
    """Check that both stacks have the same inlined functions in the same positions.

    Only the last component of each name is compared, because debug information without linkage names has
    nothing else.
    """
    differences = []
    for ours, theirs in pairs:
        names = [_last_part(frame.function) if frame.inlined else "" for frame in ours]
        others = [_last_part(frame.name) if frame.inlined else "" for frame in theirs]
        if names != others:
            differences.append(f"  {names}\n  {others}")
    same = len(pairs) - len(differences)
    assert len(pairs) >= IDLE + SLEEPERS + WAITERS
    assert same >= FLOOR * len(pairs), "\n".join(differences)


def _last_part(name: str | None) -> str:
    return plain(name or "?").rpartition("::")[2]
