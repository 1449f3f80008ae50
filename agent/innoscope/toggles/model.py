"""Define the data model of toggles and planned changes, and the interface of the backends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from innoscope.common.errors import ExitCode, InnoscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.common.versions import VersionRange

#: Value of a server variable, as written and read back.
Raw: TypeAlias = bool | int | float | str


class Risk(Enum):
    """The potential harm of a toggle. A dangerous toggle must be confirmed by typing its name."""

    HARMLESS = "harmless"
    CAREFUL = "careful"
    DANGEROUS = "dangerous"


class ChangeRefused(InnoscopeError):
    """A check failed, and nothing was written."""

    exit_code = ExitCode.REFUSED


class NotOnThisServer(ChangeRefused):
    """No backend can safely set the toggle on this server; ``what`` is the reason."""

    exit_code = ExitCode.NOT_SUPPORTED


class ChangeFailed(InnoscopeError):
    """The server was or may have been changed, but not as planned. The journal contains the details."""

    exit_code = ExitCode.CHANGE_FAILED


@dataclass(frozen=True, slots=True)
class ToggledVariable:
    """A variable in the server: ``name`` is a system variable (sql) or a global symbol (memory).

    ``kind`` (unsigned, signed, float) and ``size`` (1, 4 or 8 bytes) define what the memory backend may
    write. ``plausible`` is the range of values that the variable may have before the change. ``variable`` is
    the system variable that shows the same memory; on a stripped server, the address is looked up under that
    name in the server's own table of variables.
    """

    name: str
    kind: str | None = None
    size: int | None = None
    plausible: tuple[float, float] | None = None
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The value of one setting for each value of the toggle.

    ``values`` maps the toggle's words (on, off, a choice) to the values to write. Without ``values``, the
    toggle's number times ``scale`` is written. ``low`` and ``high`` narrow the toggle's range on these
    servers. ``bound`` marks another variable, which limits the toggle's variable. With "raise", that variable
    is raised to the number if it is lower; with "lower", it is lowered if it is higher. A bound variable has
    its own step, so that undo can restore it. ``to`` is the number for a bound variable if it differs from
    the toggle's number.
    """

    setting: ToggledVariable
    values: Mapping[str, Raw] | None = None
    scale: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str | None = None
    to: int | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """The settings that one backend, sql or memory, changes for a toggle on one generation of servers."""

    kind: str
    assignments: tuple[Assignment, ...] = ()
    note: str | None = None  # further effects of this backend on these servers


@dataclass(frozen=True, slots=True)
class ToggleGeneration:
    """A toggle on the servers of one flavour and version range.

    If ``backends`` is empty, ``refused`` is the reason. ``never`` maps a backend to the reason why it must
    not be used on these servers, even on request.
    """

    flavour: str
    versions: VersionRange
    backends: tuple[Backend, ...] = ()
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
    """One toggle in the catalog."""

    name: str
    title: str
    what: str  # written for DBAs: the toggle's effect, and when to use it
    risk: Risk
    domain: Domain
    generations: tuple[ToggleGeneration, ...]
    also: str | None = None  # further effects
    undo: str | None = None  # what undo cannot restore
    cluster: str | None = None  # the effect on the other nodes of a cluster


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """One write. The last four fields are set only by the memory backend."""

    setting: str
    old: Raw | None
    new: Raw | None
    address: int | None = None
    size: int | None = None
    type: str | None = None  # unsigned, signed or float
    origin: str | None = None  # source of address and type, such as "symbol (dynsym)"


@dataclass(frozen=True, slots=True)
class ToggleVerdict:
    """The result of one check, with ``reason`` and ``remedy`` if it failed."""

    check: str
    ok: bool
    reason: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A planned change: the exact writes, and the results of the checks."""

    toggle: Toggle
    value: str  # as entered by the user
    backend: Backend
    steps: tuple[ChangeStep, ...]
    verdicts: tuple[ToggleVerdict, ...]
    warnings: tuple[str, ...] = ()
    #: Backends that were rejected before this one, and the reasons.
    passed: tuple[tuple[str, str], ...] = ()

    @property
    def refusals(self) -> tuple[ToggleVerdict, ...]:
        """Return the checks that failed."""
        return tuple(verdict for verdict in self.verdicts if not verdict.ok)


@runtime_checkable
class Writer(Protocol):
    """Changes the settings of one target through one backend. The caller must close the writer."""

    kind: str

    def prepare(self, backend: Backend, new: Sequence[Raw | None]) -> tuple[ChangeStep, ...]:
        """Return the steps, with the current values as old values.

        Raise NotOnThisServer if the server does not have the setting, or ChangeRefused if a check fails.
        """
        ...

    def read(self, step: ChangeStep) -> Raw:
        """Return the setting's current value."""
        ...

    def write(self, step: ChangeStep) -> None:
        """Write ``step.new``.

        Raise ChangeRefused if nothing was written, or ChangeFailed if the server may have been changed.
        """
        ...

    def close(self) -> None:
        """Close connections and files."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A writer that can locate many settings at once, which is much faster than one by one."""

    def learn(self, backends: Sequence[Backend]) -> None:
        """Locate all settings of these backends. Raise only errors that affect all of them."""
        ...


def same(one: Raw | None, other: Raw | None) -> bool:
    """Return whether two values are equivalent, such as ON and 1, or 75 and 75.0."""
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
