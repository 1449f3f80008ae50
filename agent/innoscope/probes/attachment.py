"""The probes of one server: attached, read, taken off and put back."""

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
from innoscope.probes.catalog import ENTER, LEAVE, Catalog, default_catalog
from innoscope.probes.loader import Loaded, compile_and_load
from innoscope.probes.slots import default_slots
from innoscope.probes.symbol_resolution import Missing, Placed, place
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.model import Target

_LOG = logging.getLogger(__name__)

#: Words of ``struct histogram`` in probe.h: the sum, then the octaves.
HISTOGRAM_WORDS = 41
_MAPS = ("counters", "histograms", "hits", "thread_kinds", "server", "windows", "dropped")
#: Keys of ``dropped`` in probe.h: maps that the programs themselves may fill.
_FILLED_BY_PROGRAMS = ("files", "sites")
#: Where the programs count what finds no room: keys that no server makes, entered before it can be full.
OTHER_FILES = (struct.pack("=II", 0xFFFFFFFF, 0), struct.pack("=II", 0xFFFFFFFF, 1))
OTHER_SITE = struct.pack("=QQ", 0, 0)
#: The programs' default, which needs no entry.
_USER = THREADS.index("user")
#: Maps that only some probes bring, with their bytes of a key and words of a value.
_OPTIONAL = {
    "files": ({"fsync", "fdatasync", "pread"}, 8, HISTOGRAM_WORDS),
    "sites": ({"mutex_spin", "rw_lock_spin"}, 16, 1),
    "mutexes": ({"mutex_wait"}, 8, 1),
}


@dataclass(slots=True)
class Point:
    """One probe at its place. ``probes`` are those attached now, ``problem`` why there are none."""

    index: int
    placed: Placed
    probes: list[_native.Uprobe] = field(default_factory=list)
    problem: str | None = None

    @property
    def name(self) -> str:
        """The probe's name in the catalog."""
        return self.placed.probe.name

    @property
    def attached(self) -> bool:
        """Whether it counts now."""
        return bool(self.probes)


@dataclass(frozen=True, slots=True)
class Reading:
    """All that the maps hold: raw, since they were made."""

    at: float  # time.monotonic()
    counters: list[int]
    histograms: list[list[int]]  # words of struct histogram
    hits: list[int]


class Barred(InnoscopeError):
    """Somebody took everything off while it was put on."""


class Attachment:
    """Programs and maps for one server, made once; its probes come and go.

    ``families`` None are those on by default; of these, with ``metrics``, the probes that feed them.
    Closing (or dying, in whatever way) takes everything off. Raises BccMissing, NoRights, KernelUnable or
    NoSuchProcess.
    """

    def __init__(
        self,
        target: Target,
        families: frozenset[str] | None = None,
        *,
        metrics: frozenset[str] | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self.target = target
        self.catalog = catalog or default_catalog()
        wanted = (
            self.catalog.of(families)
            if metrics is None
            else self.catalog.feeding(metrics, target.flavour, target.version)
        )
        placement = place(target, wanted)
        self.missing: list[Missing] = list(placement.missing)
        self.build_id = placement.build_id
        self.points = [Point(index, placed) for index, placed in enumerate(placement.placed)]
        self._check_same_file()
        self._loaded = self._load()
        self._since: dict[int, int] = {}  # by point, monotonic ns
        self._kinds: dict[int, int] = {}  # as the programs know them
        self._barred = False
        self._no_room = 0  # threads whose kind found no room
        try:
            self._maps = self._open_maps()
            self._make_room_for_others()
            self.count_in(target.pid)
        except BaseException:  # nobody can close what was never made
            self._loaded.close()
            raise

    def _check_same_file(self) -> None:
        """What is mapped must be what the target was when it was found; an exec makes it another server."""
        if self.build_id != self.target.build_id:
            raise NoSuchProcess(
                f"process {self.target.pid} runs another executable than before "
                f"(build-id {self.build_id}, not {self.target.build_id})",
                remedy="innoscope targets",
            )

    def _load(self) -> Loaded:
        used = [(point.placed.probe, point.placed.site) for point in self.points]
        programs = [f"{probe.name}_{at}" for probe, site in used for at in site.at]
        programs += [f"{CALIBRATION}_{at}" for at in (ENTER, LEAVE)]
        text = program_text(self.catalog, used)
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

    def _make_room_for_others(self) -> None:
        for name, keys in (("files", OTHER_FILES), ("sites", (OTHER_SITE,))):
            if (table := self.optional_map(name)) is not None:
                for key in keys:
                    table.update(key, bytes(8 * _OPTIONAL[name][2]))

    def _map(self, name: str) -> _native.BpfMap:
        return self._maps[name]

    def optional_map(self, name: str) -> _native.BpfMap | None:
        """``files``, ``sites`` or ``mutexes``, if a probe that fills it is there."""
        return self._maps.get(name)

    def attach(self, points: Iterable[Point] | None = None) -> None:
        """Put these (all) on. One that the kernel refuses says so in its ``problem``; the others go on."""
        for point in self.points if points is None else points:
            if not point.attached:
                self._attach(point)

    def _attach(self, point: Point) -> None:
        try:
            with translating(self.target.pid):
                self._set_window(point.index, is_open=False)
                for at in point.placed.site.at:  # entries first: a return without its entry is not counted
                    self._attach_at(point, at)
                # Only now: the kernel calls us while it attaches where somebody else has a breakpoint.
                self._set_window(point.index, is_open=True)
        except (NoSuchProcess, Barred):
            self.detach([point])
            raise
        except InnoscopeError as error:
            self.detach([point])
            point.problem = error.what
        except BaseException:  # half of a probe must not stay on, whatever it was
            self.detach([point])
            raise
        else:
            point.problem = None

    def _attach_at(self, point: Point, at: str) -> None:
        if at == LEAVE and point.placed.site.returns not in self.catalog.safe:
            raise InnoscopeError(f"{point.name}: an exception may cross it, no return probe goes there")
        program = self._loaded.programs[f"{point.name}_{at}"]
        for spot in point.placed.places:
            probe = _native.Uprobe(
                program, point.placed.path, spot.offset, self.target.pid, on_return=at == LEAVE
            )
            point.probes.append(probe)
            if self._barred:  # only now: who barred it may have missed this one
                raise Barred(f"{point.name}: no probe may be attached")

    def stop_counting(self, point: Point) -> None:
        """From now on its hits do not count: taking it off takes the kernel a while. Calls that began do."""
        self._set_window(point.index, is_open=False)

    def _set_window(self, index: int, *, is_open: bool) -> None:
        since = time.monotonic_ns() if is_open else self._since.get(index, 0)
        self._since[index] = since
        self._map("windows").update(struct.pack("=I", index), struct.pack("=QQ", since, is_open))

    def detach(self, points: Iterable[Point] | None = None) -> None:
        """Take these (all) off. Takes some 100 ms: the kernel waits for programs at work.

        If that raises, those that may still be on are still in their points.
        """
        chosen = list(self.points if points is None else points)
        probes = [(point, probe) for point in chosen for probe in reversed(point.probes)]  # returns first
        try:
            _native.detach_all([probe for _, probe in probes])
        except BaseException as error:
            _LOG.warning("cannot detach probes together: pid=%d error=%r", self.target.pid, error)
            for _, probe in probes:
                probe.detach()
        for point, probe in probes:
            with suppress(ValueError):  # another thread has detached it too
                point.probes.remove(probe)

    def bar(self) -> None:
        """Take everything off, and keep it off until ``unbar``, also while another thread attaches."""
        self._barred = True
        self.detach()

    def unbar(self) -> None:
        """Allow probes again."""
        self._barred = False

    @property
    def attached(self) -> bool:
        """Whether any probe is on."""
        return any(point.attached for point in self.points)

    def close(self) -> None:
        """Take everything off and give up programs and maps."""
        self.detach()
        self._loaded.close()

    def set_thread_kinds(self, kinds: Mapping[int, int]) -> None:
        """Tell the programs which threads are not the clients' own: tid → index in ``source.THREADS``.

        Those of before that are not among them have exited and are deleted. Where the map is full, the rest
        count as clients, and as dropped.
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
                if not self._no_room:
                    _LOG.warning(
                        "map full: map=thread_kinds pid=%d entries=%d", self.target.pid, len(self._kinds)
                    )
                self._no_room += 1
            else:
                self._kinds[tid] = kind

    @property
    def known_kinds(self) -> int:
        """Threads whose kind the programs know."""
        return len(self._kinds)

    def dropped(self) -> dict[str, int]:
        """How often a map was full, for those that grow with the server."""
        by_programs = self._map("dropped").array(len(_FILLED_BY_PROGRAMS))
        found = {name: count for name, [count] in zip(_FILLED_BY_PROGRAMS, by_programs, strict=True)}
        return {"thread_kinds": self._no_room} | {
            name: count for name, count in found.items() if name in self._maps
        }

    def read(self) -> Reading:
        """What the maps hold now."""
        slots = default_slots()
        return Reading(
            at=time.monotonic(),
            counters=[value for [value] in self._map("counters").array(slots.counter_count)],
            histograms=self._map("histograms").array(slots.histogram_count),
            hits=[value for [value] in self._map("hits").array(len(self.points))],
        )

    @property
    def calibration_programs(self) -> tuple[int, int]:
        """Descriptors of the programs for calibration: enter and leave."""
        programs = self._loaded.programs
        return programs[f"{CALIBRATION}_{ENTER}"], programs[f"{CALIBRATION}_{LEAVE}"]

    def count_in(self, pid: int) -> None:
        """Let the programs count in this process and no other: the server, or ourselves for calibration."""
        self._map("server").update(struct.pack("=I", 0), struct.pack("=Q", pid))
        self._set_window(len(self.points), is_open=True)  # the calibration's own
