"""Sample statements and the waits within them, with BPF programs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError
from innoscope.probes.latency.model import NO_STACK, UNKNOWN
from innoscope.probes.latency.shares import BlockedStack, StatementLatency
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.profile.model import RUNNABLE
from innoscope.sampling.profile.naming import ThreadBuilder
from innoscope.sampling.profile.setup import open_samples
from innoscope.sampling.profile.wait_events import StackLimit
from innoscope.target.digests import MAX_CHARS, SharedDigests, rules
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.probes.catalog import CommandArguments
    from innoscope.probes.trace.model import TracedFunction
    from innoscope.sampling.profile.setup import Naming
    from innoscope.target.model import Target

_RING_BYTES: Final = 32 << 20
_MIN_THREADS: Final = 16384
_QUERY: Final = 3  # COM_QUERY
_EXECUTE: Final = 23  # COM_STMT_EXECUTE
#: Initial maximum number of stacks per thread in one window of 134 ms. It is higher than in a profile,
#: because statements are sampled instead of waits: all waits of a sampled statement should have a stack.
_INITIAL_LIMIT: Final = 64
#: Share of one CPU that snapshots may use. Snapshots capture the stacks of long waits that were not sampled.
_SNAPSHOT_CPU_SHARE: Final = 0.01
#: Minimum seconds between two snapshots.
_MIN_PAUSE_S: Final = 0.02
_NO_STACK: Final = BlockedStack(NO_STACK, ())


class Sampler:
    """The programs and probes of a latency profile. ``close``, or any exit of this process, detaches them.

    Raise NoRights if we are not allowed to profile the server, KernelUnable if the kernel does not support
    this, or NoSuchProcess if the server has exited.
    """

    def __init__(
        self,
        target: Target,
        chosen: TracedFunction,
        command: CommandArguments,
        naming: Naming,
        members: tuple[int, int, int] | None = None,
    ) -> None:
        self.target = target
        self._chosen = chosen
        with translating(target.pid):
            self._program = _native.OffCpu(
                target.pid,
                target.start_time,
                ring_bytes=_RING_BYTES,
                most_threads=max(_MIN_THREADS, 4 * target.threads),
                commands=_places(command),
                members=members,
            )
        self._samples, notes = open_samples(target, self._program.ring, naming)
        server = rules(target.flavour, target.version)
        self._samples.collect_statements(server.version, server.mysql_9, MAX_CHARS)
        self.notes = list(notes)
        self._builder = ThreadBuilder(target.pid, self._samples)
        self._limit = StackLimit(initial=_INITIAL_LIMIT)
        self._probes: list[_native.Uprobe] = []
        self._next_snapshot_at = 0.0
        self._taken = 0
        self._stacks: dict[_native.Place, BlockedStack] = {}

    @property
    def hits(self) -> int:
        """Return the number of commands since ``attach``."""
        return self._program.hits

    @property
    def stacks(self) -> int:
        """Return the number of copied stacks. Each statement and each stack produces two records."""
        return max(0, self._samples.taken.records // 2 - self._taken)

    @property
    def lost(self) -> int:
        """Return the number of lost records and events, plus the number of dropped statements."""
        return self._program.lost + self._samples.missing_statements[1]

    @property
    def unfinished(self) -> int:
        """Return the number of sampled statements that have not ended."""
        return self._samples.missing_statements[0]

    def attach(self, *, on_return: bool) -> None:
        """Attach to the entry or the return of all copies of the function."""
        program = self._program.statement_program("statement_leave" if on_return else "statement_enter")
        with translating(self.target.pid):
            for place in self._chosen.places:
                self._probes.append(
                    _native.Uprobe(
                        program, self._chosen.path, place.offset, self.target.pid, on_return=on_return
                    )
                )

    def begin(self, every: int, stacks_per_s: float) -> None:
        """Start sampling one statement in ``every``, and up to about ``stacks_per_s`` stacks per second."""
        self._limit = StackLimit(stacks_per_s, _INITIAL_LIMIT)
        with translating(self.target.pid):
            self._program.follow(self._limit.value)
            self._program.set_statements(every)
            self._program.begin()
        self._limit.since = time.monotonic()
        self._next_snapshot_at = self._limit.since + _MIN_PAUSE_S

    def set_every(self, every: int) -> None:
        """Sample one statement in ``every`` from now on. Reset the limit on stacks to its initial value."""
        self._limit.value = _INITIAL_LIMIT
        with translating(self.target.pid):
            self._program.set_most(self._limit.value)
            self._program.set_statements(every)

    def poll(self) -> None:
        """Read new records, adjust the limit on stacks, and take a snapshot if one is due."""
        with translating(self.target.pid):
            self._samples.read()
            if self._limit.adjust(time.monotonic(), 2 * self.stacks):
                self._program.set_most(self._limit.value)
        if time.monotonic() >= self._next_snapshot_at:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        used = time.thread_time()
        try:
            with translating(self.target.pid):
                self._program.take_snapshot(self._samples)
        except InnoscopeError as error:
            note = f"cannot take a snapshot of the waiting threads: {error.what}"
            if note not in self.notes:
                self.notes.append(note)
        used = time.thread_time() - used
        self._next_snapshot_at = time.monotonic() + max(_MIN_PAUSE_S, used / _SNAPSHOT_CPU_SHARE)

    def end(self) -> None:
        """Stop sampling, detach the probes, and read the last records."""
        with translating(self.target.pid):
            self._program.end()
            self._detach()
            self._samples.read()
        self.notes += self._samples.notes

    def take(self) -> list[_native.SampledStatement]:
        """Return the statements that have ended since the last call."""
        taken = self._samples.take_statements()
        self._taken += len(taken)
        return taken

    def waits(self, statement: _native.SampledStatement) -> dict[BlockedStack, int]:
        """Return the blocked time of a statement by stack, in nanoseconds."""
        found: dict[BlockedStack, int] = {}
        for place, blocked_ns in statement.waits:
            stack = self._stack(statement.tid, place)
            found[stack] = found.get(stack, 0) + blocked_ns
        return found

    def _stack(self, tid: int, place: _native.Place | None) -> BlockedStack:
        if place is None:
            return _NO_STACK
        stack = self._stacks.get(place)
        if stack is None:
            thread = self._builder.blocked(tid, self._samples.comms().get(tid, ""), place)
            frames = default_classifier().server_frames(thread.frames)
            stack = self._stacks[place] = BlockedStack(thread.wait, tuple([frame.label for frame in frames]))
        return stack

    def prepared_digest(self, prepared: tuple[int, int]) -> tuple[str, str] | None:
        """Return the texts of a prepared statement's digest, or None if they are unknown."""
        return self._samples.prepared_digest(*prepared)

    def close(self) -> None:
        """Detach the probes."""
        self._detach()

    def _detach(self) -> None:
        probes, self._probes = self._probes[::-1], []
        _native.detach_all(probes)


class Digests:
    """The ids and texts of the sampled statements' digests."""

    def __init__(self, commands: Mapping[int, str]) -> None:
        self._commands = commands
        self._shared = SharedDigests()
        self._prepared: dict[str, tuple[int, int]] = {}
        self.texts: dict[str, str] = {}

    def statement(
        self, statement: _native.SampledStatement, waits: dict[BlockedStack, int]
    ) -> StatementLatency:
        """Return the statement with its digest's id, and with its times by class and by stack."""
        spent = times(statement, waits)
        return StatementLatency(self._id(statement), sum(spent.values()), spent, waits)

    def _id(self, statement: _native.SampledStatement) -> str:
        """Return the id of a statement's digest, UNKNOWN for a query without text, or the command's name.

        The id of a prepared statement whose text is unknown is provisional, until ``resolve``.
        """
        if statement.digest is not None:
            return self._known(statement.digest)
        if statement.prepared is not None:
            provisional = f"prepared {statement.prepared}"
            self._prepared[provisional] = statement.prepared
            return provisional
        number = statement.command
        return UNKNOWN if number == _QUERY else self._name(number)

    def _known(self, texts: tuple[str, str]) -> str:
        digest = self._shared.digest(texts)
        self.texts[digest.id] = digest.text
        return digest.id

    def _name(self, command: int) -> str:
        return f"({self._commands.get(command, f'command {command}')})"

    def resolve(
        self, statements: list[StatementLatency], digest: Callable[[tuple[int, int]], tuple[str, str] | None]
    ) -> list[StatementLatency]:
        """Replace the provisional ids of prepared statements with the ids of their digests.

        If a digest is still unknown, use the command's name instead.
        """
        ids = {}
        for provisional, prepared in self._prepared.items():
            texts = digest(prepared)
            ids[provisional] = self._name(_EXECUTE) if texts is None else self._known(texts)
        return [
            replace(statement, digest=ids[statement.digest]) if statement.digest in ids else statement
            for statement in statements
        ]


def times(statement: _native.SampledStatement, waits: Mapping[BlockedStack, int]) -> dict[str, int]:
    """Return the time of a statement by wait class, in nanoseconds; the sum is its wall time."""
    wall = statement.ended - statement.began
    off = min(wall, statement.blocked_ns + statement.runnable_ns)
    found = {"on_cpu": wall - off, RUNNABLE: off - min(off, statement.blocked_ns)}
    for stack, blocked_ns in waits.items():
        found[stack.wait] = found.get(stack.wait, 0) + blocked_ns
    return {wait: spent for wait, spent in found.items() if spent}


def _places(command: CommandArguments) -> list[tuple[int, int | None]]:
    places = (command.command, command.text, command.length, command.thd, command.prepared)
    return [(place.arg, place.at) for place in places]
