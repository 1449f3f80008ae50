"""What a toggle is, what a change of it does, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from innoscope.common.errors import ExitCode, InnoscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What a server's variable holds, as written and read back.
Raw: TypeAlias = bool | int | float | str


class Risk(Enum):
    """What a wrong moment can cost. A dangerous one is confirmed by typing its name."""

    HARMLESS = "harmless"
    CAREFUL = "careful"
    DANGEROUS = "dangerous"


class Refused(InnoscopeError):
    """A check said no: nothing was written."""

    exit_code = ExitCode.REFUSED


class NotOnThisServer(Refused):
    """This server has no safe way for the toggle; ``what`` says why."""

    exit_code = ExitCode.NOT_SUPPORTED


class ChangeFailed(InnoscopeError):
    """Something was (or may have been) written and did not turn out as planned; the journal has it."""

    exit_code = ExitCode.CHANGE_FAILED


@dataclass(frozen=True, slots=True)
class Setting:
    """A place in the server: ``name`` is a system variable (sql) or a global symbol (memory).

    ``kind`` (unsigned, signed, float) and ``size`` (1, 4 or 8 bytes) say what the memory way may write, and
    ``plausible`` the lowest and highest value that may be found there before. ``variable`` is the system
    variable that shows the same place: stripped servers find it in their own table of them.
    """

    name: str
    kind: str | None = None
    size: int | None = None
    plausible: tuple[float, float] | None = None
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a value of the toggle means for one setting.

    ``values`` maps the toggle's words (on, off, a choice) to what is written; without it, the toggle's number
    is written itself, times ``scale``. ``low`` and ``high`` limit the toggle's number more narrowly on these
    servers. A ``bound`` setting is not the toggle's own but stands in its way: "raise" only raises it to the
    number, "lower" only lowers it, so that undoing knows what it was.
    """

    setting: Setting
    values: Mapping[str, Raw] | None = None
    scale: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way on one generation of servers. ``kind`` is sql or memory."""

    kind: str
    assignments: tuple[Assignment, ...] = ()
    note: str | None = None  # what else this way changes, on these servers


@dataclass(frozen=True, slots=True)
class Generation:
    """Servers of a flavour from a version up to (not with) another. No ``ways``: ``refused`` says why not.

    ``never`` maps a kind of way to the reason why it must not be used here even when asked for.
    """

    flavour: str
    since: tuple[int, ...]
    below: tuple[int, ...] | None
    ways: tuple[Way, ...] = ()
    refused: str | None = None
    never: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of a toggle: ``words`` (on and off, or choices), or a number from ``low`` to ``high``."""

    words: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Toggle:
    """One entry of the catalog."""

    name: str
    title: str
    what: str  # for a DBA: what it does and when one wants it
    risk: Risk
    domain: Domain
    generations: tuple[Generation, ...]
    also: str | None = None  # what else changes
    undo: str | None = None  # what undoing cannot bring back


@dataclass(frozen=True, slots=True)
class Step:
    """One write: from what to what. ``address``, ``size`` and ``type`` only for memory."""

    setting: str
    old: Raw | None
    new: Raw | None
    address: int | None = None
    size: int | None = None
    type: str | None = None  # unsigned, signed or float
    origin: str | None = None  # where address and size come from ("debug information", ".dynsym", ...)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says. ``reason`` and ``remedy`` when it says no."""

    check: str
    ok: bool
    reason: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Exactly what would be done."""

    toggle: Toggle
    value: str  # as the person gave it
    way: Way
    steps: tuple[Step, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()
    #: Ways that were tried before this one, and why they do not work here.
    passed: tuple[tuple[str, str], ...] = ()

    @property
    def refusals(self) -> tuple[Verdict, ...]:
        """The checks that say no."""
        return tuple(verdict for verdict in self.verdicts if not verdict.ok)


@runtime_checkable
class Writer(Protocol):
    """One way to change a server. Made for one target, closed after use; a context manager."""

    kind: str

    def prepare(self, way: Way, new: Sequence[Raw | None]) -> tuple[Step, ...]:
        """The steps, with what is there now; nothing is written. Raises NotOnThisServer or Refused."""
        ...

    def read(self, step: Step) -> Raw:
        """What the step's setting is now."""
        ...

    def write(self, step: Step) -> None:
        """Write ``step.new``. Raises ChangeFailed or Refused."""
        ...

    def close(self) -> None:
        """Give up connections and files."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A writer that finds many settings together much faster than one by one."""

    def learn(self, ways: Sequence[Way]) -> None:
        """Look for all settings of the ways. Raises only what stops all of them."""
        ...


def same(one: Raw | None, other: Raw | None) -> bool:
    """Whether two raw values are the same setting: ON and 1, 75 and 75.0 are."""
    return bool(_plain(one) == _plain(other))


def _plain(raw: Raw | None) -> Any:
    if isinstance(raw, str):
        text = raw.strip().lower()
        if text in ("on", "off", "yes", "no", "true", "false"):
            return float(text in ("on", "yes", "true"))
        try:
            return float(text)
        except ValueError:
            return text
    return None if raw is None else float(raw)
