"""Find every call that chosen modules make while they run, and make any one of these calls fail once.

A trace function sees each instruction before it runs. An error that it raises looks to the program as if the
instruction had failed, so calls of built-in functions and types can fail, too.
"""

from __future__ import annotations

import dis
import linecache
import re
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import innoscope
from safety.governing import holds_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

_PACKAGE: Final = Path(innoscope.__file__).parent
_CALLS: Final = frozenset({"CALL", "CALL_FUNCTION_EX", "BEFORE_WITH"})
#: Calls that release a lock. They allocate nothing, so they cannot fail. If one were skipped, the lock would
#: stay locked forever.
_RELEASES: Final = re.compile(r"leave with self\.\w*_(lock|state):|.*_lock\.release\(\)")
#: A function that has made no new call this many times is not traced any more, because that is slow.
_ENOUGH: Final = 20
#: Maximum seconds until a call that was found is made again.
_AGAIN_S: Final = 5.0
#: Maximum share of calls that are not made again, because they depend on what the server does.
_MOST_MISSED: Final = 0.05
#: Maximum number of bad effects before a test ends.
_MOST_BAD: Final = 5

_Value = TypeVar("_Value")


class Site(NamedTuple):
    """A call in the source. ``offset`` is the place of its instruction in the code of ``function``."""

    file: str  # relative to agent/innoscope
    line: int
    function: str
    offset: int
    text: str  # the first line of its source; "leave with …" for the call of __exit__

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.text} (+{self.offset})"

    @property
    def can_fail(self) -> bool:
        """Return whether the call can fail."""
        return _RELEASES.fullmatch(self.text) is None


class _Armed(NamedTuple):
    """A call that must fail, the id() of the code that makes it, and a function that raises the error."""

    site: Site
    code: int
    fail: Callable[[], None]


class CallSites:
    """Context manager: traces the threads that start while it is active. Only calls in ``files`` count.

    ``files`` are relative to agent/innoscope. While ``finding``, all calls are recorded in ``found``, which
    makes the code very slow.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.finding = True
        self.found: set[Site] = set()
        self.failed_in: str | None = None  # name of the thread in which the armed call failed
        self._names = {str(_PACKAGE / file): file for file in files}
        self._sites: dict[int, dict[int, Site]] = {}  # by id() of the code, and offset
        #: By id() of the code: how often it was traced since its last new call was found.
        self._traced: Counter[int] = Counter()
        self._armed: _Armed | None = None
        self._lock = threading.Lock()
        self._active = False

    def __enter__(self) -> CallSites:
        self._active = True
        threading.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        self._active = self.finding = False
        self._armed = None
        threading.settrace(None)

    def take_found(self) -> set[Site]:
        """Return the calls that have been found since the last call of this method, except releases."""
        found, self.found = self.found, set()
        self._traced.clear()
        return {site for site in found if site.can_fail}

    def arm(self, site: Site, fail: Callable[[], None]) -> None:
        """Make the next call at ``site`` fail, in any thread."""
        self.failed_in = None
        code = next(code for code, sites in self._sites.items() if site in sites.values())
        self._armed = _Armed(site, code, fail)
        for frame in sys._current_frames().values():
            self._trace_stack(frame)

    def disarm(self) -> None:
        """Do not make the armed call fail, unless it has failed already."""
        self._armed = None

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Handle the start of a function."""
        if not self._active:
            sys.settrace(None)
            return None
        caller = frame.f_back
        if caller is not None and caller.f_trace is not None and self.finding:
            self._find(caller)  # a call by another instruction, such as the use of a property or a generator
        trace = self._trace_calls(frame)
        if trace is not None:
            self._traced[id(frame.f_code)] += 1
        return trace

    def _trace_calls(self, frame: FrameType) -> Any:
        armed = self._armed
        finding = self.finding and self._traced[id(frame.f_code)] < _ENOUGH
        wanted = finding or (armed is not None and id(frame.f_code) == armed.code)
        if not wanted or frame.f_code.co_filename not in self._names:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Handle the next instruction of a function."""
        if event != "opcode":
            return self._step
        site = self._sites_of(frame.f_code).get(frame.f_lasti)
        if site is not None:
            if self.finding:
                self._add(frame.f_code, site)
            armed = self._take(site)
            if armed is not None:
                self.failed_in = threading.current_thread().name
                sys.setprofile(self._resume)  # the error ends the tracing of this thread
                armed.fail()
        return self._trace_calls(frame)

    def _take(self, site: Site) -> _Armed | None:
        """Return the armed call if it is ``site``, but only once."""
        if self._armed is None or self._armed.site != site:
            return None
        with self._lock:
            armed, self._armed = self._armed, None
        return armed

    def _resume(self, frame: FrameType, _event: str, _argument: object) -> None:
        """Trace the thread again, from its first call after the failure."""
        sys.setprofile(None)
        sys.settrace(self._trace)
        self._trace_stack(frame)

    def _trace_stack(self, frame: FrameType | None) -> None:
        while frame is not None:
            if (trace := self._trace_calls(frame)) is not None:
                frame.f_trace = trace
            frame = frame.f_back

    def _find(self, frame: FrameType) -> None:
        """Record the call that ``frame`` makes now. ``f_lasti`` may point behind its instruction."""
        sites = self._sites_of(frame.f_code)
        instructions = dis.get_instructions(frame.f_code)
        latest = max((one for one in instructions if one.offset <= frame.f_lasti), key=lambda one: one.offset)
        if latest.offset not in sites:
            sites[latest.offset] = self._site(frame.f_code, latest)
        self._add(frame.f_code, sites[latest.offset])

    def _add(self, code: CodeType, site: Site) -> None:
        if site not in self.found:
            self.found.add(site)
            self._traced[id(code)] = 0

    def _sites_of(self, code: CodeType) -> dict[int, Site]:
        sites = self._sites.get(id(code))
        if sites is None:
            calls = (one for one in dis.get_instructions(code) if one.opname in _CALLS)
            sites = self._sites[id(code)] = {one.offset: self._site(code, one) for one in calls}
        return sites

    def _site(self, code: CodeType, instruction: dis.Instruction) -> Site:
        place = instruction.positions
        assert place is not None
        line, first, last = place.lineno or 0, place.col_offset or 0, place.end_col_offset
        source = linecache.getline(code.co_filename, line).encode()
        text = source[first : last if place.end_lineno == line else None].decode().strip()
        if instruction.opname == "CALL" and text.startswith("with "):
            text = f"leave {text}"
        return Site(self._names[code.co_filename], line, code.co_qualname, instruction.offset, text)


def call_in_thread(call: Callable[[], _Value]) -> _Value | None:
    """Call a function in a thread, which is traced. Return its result, or None if it raises an exception."""
    results: list[_Value] = []

    def run() -> None:
        with suppress(BaseException):  # in the sensor and the agent, the callers handle errors
            results.append(call())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0] if results else None


class Problems:
    """The calls whose failure had bad effects, and the calls that were not made again."""

    def __init__(self) -> None:
        self.bad: list[str] = []
        self.missed: set[str] = set()

    @contextmanager
    def noting(self, site: Site, error: str) -> Iterator[None]:
        """Note a failed assertion. Raise it if there are many."""
        try:
            yield
        except AssertionError as failure:
            self.bad.append(f"{error} at {site}: {str(failure).splitlines()[0]}")
            if len(self.bad) >= _MOST_BAD:
                raise AssertionError("\n".join(self.bad)) from failure

    def made(self, sites: CallSites, site: Site, make: Callable[[], object] = lambda: None) -> bool:
        """Return whether the armed call has failed. Note it as missed if it is not made again soon.

        ``make`` is called repeatedly until then.
        """
        if holds_within(_AGAIN_S, lambda: (make(), sites.failed_in)[1] is not None):
            return True
        sites.disarm()
        self.missed.add(str(site))
        return False

    def check(self, total: int) -> None:
        """Fail if any failure had bad effects, or if more than a few calls were not made again."""
        assert not self.bad, "\n".join(self.bad)
        assert len(self.missed) <= total * _MOST_MISSED, sorted(self.missed)
