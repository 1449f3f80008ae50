"""Attach, read and detach the probes of one server."""

from __future__ import annotations

import errno
import logging
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common.errors import InnoscopeError, NoSuchProcess
from innoscope.probes.c_source import CALIBRATION, THREADS, program_text
from innoscope.probes.catalog import ENTER, LEAVE, default_catalog
from innoscope.probes.descriptor_kinds import OTHER_FILE
from innoscope.probes.loader import Loaded, compile_and_load
from innoscope.probes.slots import default_slots
from innoscope.probes.symbol_resolution import MissingProbe, Placed, place
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.model import Target

_LOG = logging.getLogger(__name__)

#: Number of words in ``struct histogram`` of probe.h: the sum, then the octaves.
HISTOGRAM_WORDS = 41
_MAPS = ("counters", "histograms", "hits", "thread_kinds", "server", "windows", "dropped")
#: Maps to which BPF programs add entries. A map's index in this tuple is its key in the ``dropped`` map
#: (probe.h).
_FILLED_BY_PROGRAMS = ("files", "sites")
#: The operation that each probe uses in its keys of the ``files`` map (files.bpf.c).
FILE_OPERATIONS = {"fsync": 0, "pread": 1, "fdatasync": 2}
#: If the ``files`` map has more entries than this, three quarters of its capacity, the entries of closed
#: descriptors are deleted. The kernel reuses the numbers of closed descriptors, so few servers reach this
#: limit. Entries of the ``sites`` map are never deleted: their keys are code locations, which remain valid.
FILES_ROOM = 3072
#: Keys of the overflow entries, which count the events whose own keys do not fit into the maps ``files`` and
#: ``sites``. No event has an overflow key. The entries are inserted while the maps are still empty.
OTHER_FILES = tuple(struct.pack("=II", OTHER_FILE, operation) for operation in FILE_OPERATIONS.values())
OTHER_SITE = struct.pack("=QQ", 0, 0)
#: The kind that BPF programs assume for threads that are not in the ``thread_kinds`` map.
_USER = THREADS.index("user")
#: Maps that only some probes need: (probes, key size in bytes, value size in words).
_OPTIONAL = {
    "files": ({"fsync", "fdatasync", "pread"}, 8, HISTOGRAM_WORDS),
    "sites": ({"mutex_spin", "rw_lock_spin"}, 16, 1),
    "mutexes": ({"mutex_wait"}, 8, 1),
}


@dataclass(slots=True)
class Point:
    """A probe whose function was found, with its attached uprobes. ``problem`` is set if attaching failed."""

    index: int
    placed: Placed
    probes: list[_native.Uprobe] = field(default_factory=list)
    problem: str | None = None

    @property
    def name(self) -> str:
        """Return the probe's name in the catalog."""
        return self.placed.probe.name

    @property
    def attached(self) -> bool:
        """Return whether the probe is attached."""
        return bool(self.probes)


@dataclass(frozen=True, slots=True)
class MapContents:
    """The raw contents of all maps. Counts are totals since the maps were created."""

    at: float  # time.monotonic()
    counters: list[int]
    histograms: list[list[int]]  # words of struct histogram
    hits: list[int]
    files: dict[bytes, list[int]]
    sites: dict[bytes, list[int]]
    deleted: frozenset[bytes] = frozenset()  # keys of ``files`` that were deleted after they were read


class AttachDisabled(InnoscopeError):
    """The error if ``disable`` was called while a probe was being attached."""


class Attachment:
    """The programs and maps for one server, created once. The probes can be attached and detached repeatedly.

    If ``families`` is None, the families that are on by default are used. With ``metrics``, only the probes
    that feed these metrics are used. ``close``, or any exit of this process, detaches everything.

    Raise BccMissing if bcc is not installed, NoRights if we are not allowed to load the programs,
    KernelUnable if they cannot be compiled or the kernel rejects them, BadFile if the executable cannot be
    read, or NoSuchProcess if the server has exited.
    """

    def __init__(
        self,
        target: Target,
        families: frozenset[str] | None = None,
        *,
        metrics: frozenset[str] | None = None,
    ) -> None:
        self.target = target
        self._catalog = default_catalog()
        wanted = (
            self._catalog.of(families)
            if metrics is None
            else self._catalog.feeding(metrics, target.flavour, target.version)
        )
        placement = place(target, wanted)
        self.missing: list[MissingProbe] = list(placement.missing)
        self.build_id = placement.build_id
        self.points = [Point(index, placed) for index, placed in enumerate(placement.placed)]
        self._check_same_file()
        self._loaded = self._load()
        self._since: dict[int, int] = {}  # start of the window of each point, monotonic ns
        self._kinds: dict[int, int] = {}  # the entries of the map thread_kinds
        self._disabled = False
        self._closed_files: frozenset[bytes] = frozenset()  # keys to delete from the ``files`` map
        self._dropped_kinds = 0  # number of failed attempts to add a thread to the full map
        try:
            self._maps = self._open_maps()
            self._insert_other_keys()
            self.count_in(target.pid)
        except BaseException:  # the caller gets no object to close
            self._loaded.close()
            raise

    def _check_same_file(self) -> None:
        """Raise NoSuchProcess if the process has called exec since the target was identified."""
        if self.build_id != self.target.build_id:
            raise NoSuchProcess(
                f"process {self.target.pid} now runs another executable "
                f"(build-id {self.build_id}, not {self.target.build_id})",
                remedy="innoscope targets",
            )

    def _load(self) -> Loaded:
        used = [(point.placed.probe, point.placed.site) for point in self.points]
        programs = [f"{probe.name}_{at}" for probe, site in used for at in site.at]
        programs += [f"{CALIBRATION}_{at}" for at in (ENTER, LEAVE)]
        text = program_text(self._catalog, used)
        return compile_and_load(text, programs, [*_MAPS, *self._optional_maps()])

    def _optional_maps(self) -> list[str]:
        names = {point.name for point in self.points}
        return [name for name, (needed_by, _, _) in _OPTIONAL.items() if names & needed_by]

    def _open_maps(self) -> dict[str, _native.BpfMap]:
        shapes = {
            "counters": {"per_cpu": True},
            "histograms": {"per_cpu": True, "words": HISTOGRAM_WORDS},
            "hits": {"per_cpu": True},
            "dropped": {"per_cpu": True},
        }
        maps = {
            name: _native.BpfMap(fd, **shapes.get(name, {}))  # type: ignore[arg-type]
            for name, fd in self._loaded.maps.items()
            if name not in _OPTIONAL
        }
        for name in self._optional_maps():
            _, key_bytes, words = _OPTIONAL[name]
            maps[name] = _native.BpfMap(self._loaded.maps[name], key_bytes=key_bytes, words=words)
        return maps

    def _insert_other_keys(self) -> None:
        for name, keys in (("files", OTHER_FILES), ("sites", (OTHER_SITE,))):
            if (table := self.optional_map(name)) is not None:
                for key in keys:
                    table.update(key, bytes(8 * _OPTIONAL[name][2]))

    def _map(self, name: str) -> _native.BpfMap:
        return self._maps[name]

    def optional_map(self, name: str) -> _native.BpfMap | None:
        """Return the map ``files``, ``sites`` or ``mutexes``; None if no probe of this attachment uses it."""
        return self._maps.get(name)

    def attach(self, points: Iterable[Point] | None = None) -> None:
        """Attach ``points`` (default: all). If the kernel refuses a probe, its ``problem`` is the reason.

        Raise NoSuchProcess if the server has exited, or AttachDisabled if ``disable`` is called meanwhile.
        """
        for point in self.points if points is None else points:
            if not point.attached:
                self._attach(point)

    def _attach(self, point: Point) -> None:
        try:
            with translating(self.target.pid):
                self._set_window(point.index, is_open=False)
                for at in point.placed.site.at:  # entries first: a return without its entry is not counted
                    self._attach_at(point, at)
                # Open the window last: the kernel runs the program at the first breakpoints while others are
                # still being attached.
                self._set_window(point.index, is_open=True)
        except (NoSuchProcess, AttachDisabled):
            self.detach([point])
            raise
        except InnoscopeError as error:
            self.detach([point])
            point.problem = error.what
        except BaseException:  # a probe must not remain partly attached
            self.detach([point])
            raise
        else:
            point.problem = None

    def _attach_at(self, point: Point, at: str) -> None:
        if at == LEAVE and point.placed.site.returns not in self._catalog.safe:
            raise InnoscopeError(f"cannot attach a return probe to {point.name}: an exception may cross it")
        program = self._loaded.programs[f"{point.name}_{at}"]
        for spot in point.placed.places:
            probe = _native.Uprobe(
                program, point.placed.path, spot.offset, self.target.pid, on_return=at == LEAVE
            )
            point.probes.append(probe)
            if self._disabled:  # checked after appending: ``disable`` may have missed this probe
                raise AttachDisabled(f"cannot attach {point.name}: probes are disabled")

    def stop_counting(self, point: Point) -> None:
        """Stop counting new hits before ``detach``, which is slow. Calls in progress are still counted."""
        self._set_window(point.index, is_open=False)

    def _set_window(self, index: int, *, is_open: bool) -> None:
        since = time.monotonic_ns() if is_open else self._since.get(index, 0)
        self._since[index] = since
        self._map("windows").update(struct.pack("=I", index), struct.pack("=QQ", since, is_open))

    def detach(self, points: Iterable[Point] | None = None) -> None:
        """Detach ``points`` (default: all).

        Detaching 49 probes takes 0.3 s with uprobe links, but 5 s with perf events, because the kernel waits
        for running programs.

        If this method raises an exception, the points still list the probes that may remain attached.
        """
        chosen = list(self.points if points is None else points)
        # In reverse order, so that return probes are detached before the entry probes.
        probes = [(point, probe) for point in chosen for probe in reversed(point.probes)]
        try:
            _native.detach_all([probe for _, probe in probes])
        except BaseException as error:
            _LOG.warning(
                "cannot detach probes together", extra={"pid": self.target.pid, "error": repr(error)}
            )
            for _, probe in probes:
                probe.detach()
        for point, probe in probes:
            with suppress(ValueError):  # another thread has already removed the probe
                point.probes.remove(probe)

    def disable(self) -> None:
        """Detach everything. Until ``enable`` is called, no thread can attach anything."""
        self._disabled = True
        self.detach()

    def enable(self) -> None:
        """Allow attaching again."""
        self._disabled = False

    @property
    def attached(self) -> bool:
        """Return whether any probe is attached."""
        return any(point.attached for point in self.points)

    def close(self) -> None:
        """Detach everything and close the programs and maps."""
        self.detach()
        self._loaded.close()

    def set_thread_kinds(self, kinds: Mapping[int, int]) -> None:
        """Set the kinds of all threads that are not client threads: tid → index in ``c_source.THREADS``.

        The entries of all other threads are deleted, because these have exited or become client threads. If
        the map is full, the remaining threads are treated as client threads, and ``dropped`` counts each
        attempt to add one.
        """
        table = self._map("thread_kinds")
        wanted = {tid: kind for tid, kind in kinds.items() if kind != _USER}
        for tid in self._kinds.keys() - wanted.keys():
            table.delete(struct.pack("=I", tid))
            del self._kinds[tid]
        for tid, kind in wanted.items():
            if self._kinds.get(tid) == kind:
                continue
            try:
                table.update(struct.pack("=I", tid), struct.pack("=I", kind))
            except OSError as error:
                if error.errno != errno.E2BIG:
                    raise
                if not self._dropped_kinds:
                    extra = {"map": "thread_kinds", "pid": self.target.pid, "entries": len(self._kinds)}
                    _LOG.warning("map full", extra=extra)
                self._dropped_kinds += 1
            else:
                self._kinds[tid] = kind

    @property
    def known_kinds(self) -> int:
        """Return the number of threads whose kind is in the map."""
        return len(self._kinds)

    def dropped(self) -> dict[str, int]:
        """Return, for each map that may become full, how often an entry did not fit."""
        by_programs = self._map("dropped").array(len(_FILLED_BY_PROGRAMS))
        found = {name: count for name, [count] in zip(_FILLED_BY_PROGRAMS, by_programs, strict=True)}
        return {"thread_kinds": self._dropped_kinds} | {
            name: count for name, count in found.items() if name in self._maps
        }

    def read(self) -> MapContents:
        """Return the contents of all maps. Then delete the entries that ``forget_files`` selected."""
        slots = default_slots()
        return MapContents(
            at=time.monotonic(),
            counters=[value for [value] in self._map("counters").array(slots.counter_count)],
            histograms=self._map("histograms").array(slots.histogram_count),
            hits=[value for [value] in self._map("hits").array(len(self.points))],
            files=self._entries("files"),
            sites=self._entries("sites"),
            deleted=self._delete_closed_files(),
        )

    def forget_files(self, closed: Iterable[bytes]) -> None:
        """Delete these entries of the ``files`` map at the next ``read``, which still returns them."""
        self._closed_files = frozenset(closed).difference(OTHER_FILES)

    def _delete_closed_files(self) -> frozenset[bytes]:
        closed, self._closed_files = self._closed_files, frozenset()
        table = self.optional_map("files")
        if table is not None:
            for key in closed:
                table.delete(key)
        return closed

    def _entries(self, name: str) -> dict[bytes, list[int]]:
        """Return the entries of an optional map, except those whose counts are all zero."""
        table = self.optional_map(name)
        return {} if table is None else {key: words for key, words in table.entries().items() if any(words)}

    @property
    def calibration_programs(self) -> tuple[int, int]:
        """Return the file descriptors of the calibration programs, for entry and return."""
        programs = self._loaded.programs
        return programs[f"{CALIBRATION}_{ENTER}"], programs[f"{CALIBRATION}_{LEAVE}"]

    def count_in(self, pid: int) -> None:
        """Restrict counting to one process: the server, or this process during calibration."""
        self._map("server").update(struct.pack("=I", 0), struct.pack("=Q", pid))
        self._set_window(len(self.points), is_open=True)  # the window of the calibration programs
