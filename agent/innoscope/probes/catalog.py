"""Read ``probes/catalog/probes.yaml``, which lists the functions to probe for each metric and server."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, field, structs

from innoscope.common.data import catalog_path
from innoscope.common.schema import Citation, Entry, NamedEntry, ServerEntry, name_entries, read_yaml
from innoscope.common.versions import VersionRange

if TYPE_CHECKING:
    from pathlib import Path

ENTER: Final = "enter"
LEAVE: Final = "leave"
_At = Literal["enter", "leave"]
_Positive = Annotated[int, Meta(ge=1)]
_Bits = Annotated[int, Meta(ge=1, le=64)]


class ProbeValue(Entry, frozen=True):
    """The source of one value in a program: an argument, the result, or a constant.

    ``arg`` is the index of the argument and ``bits`` is its width; ``result`` is the width of the result.
    ``labels`` maps numbers to label values.
    """

    arg: Annotated[int, Meta(ge=0, le=5)] | None = None
    bits: _Bits | None = None
    result: _Bits | None = None
    label: str | None = None
    number: int | None = field(default=None, name="is")
    labels: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError if a constraint that the types cannot express is violated."""
        places = (self.arg, self.result, self.label, self.number)
        if sum(place is not None for place in places) != 1:
            raise ValueError("needs exactly one of arg, result, label, is")
        if self.bits is not None and self.arg is None:
            raise ValueError("bits requires arg")

    @property
    def width(self) -> int:
        """Return the width of the argument or the result in bits."""
        return self.result or self.bits or 64


class ArgumentPlace(Entry, frozen=True):
    """An argument of a function, counted from 0.

    With ``at``, the argument is a pointer, and the value is stored at this offset from it.
    """

    arg: Annotated[int, Meta(ge=0, le=5)]
    at: Annotated[int, Meta(ge=0, le=4095)] | None = None


class CommandArguments(ServerEntry, frozen=True, kw_only=True):
    """The arguments in which the function of the ``statement`` probe receives a command.

    ``text`` and ``length`` locate the text of a query, and ``prepared`` locates the id of the prepared
    statement to execute.
    """

    command: ArgumentPlace
    text: ArgumentPlace
    length: ArgumentPlace
    thd: ArgumentPlace
    prepared: ArgumentPlace
    source: Citation


class Site(ServerEntry, frozen=True):
    """The functions to probe on some servers. ``at`` and ``returns`` default to the values of the probe."""

    at: tuple[_At, ...] = ()
    returns: str | None = None
    functions: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    libraries: tuple[str, ...] = field(default=(), name="library")  # prefixes of file names
    values: dict[str, ProbeValue] = field(default_factory=dict)
    feeds: tuple[str, ...] = ()  # metrics in addition to ``Probe.feeds``
    absent: str | None = None  # reason why no function is probed on these servers
    without: str | None = None  # the reason to report if the function is not found
    instead: str | None = None  # an alternative source if the function is absent or not found
    source: Citation | None = None  # the server's source file, and the versions that were checked

    def __post_init__(self) -> None:
        """Raise ValueError unless the site is for servers of exactly one flavour."""
        if len(self.ranges) != 1:
            raise ValueError("needs a version range of either mysql or mariadb")


class CounterCheck(Entry, frozen=True):
    """A probe metric and the server's own counter of the same event, which must agree."""

    metric: str
    counter: str


class Probe(NamedEntry, frozen=True, kw_only=True):
    """One probe, with its sites on all servers."""

    family: str
    at: tuple[_At, ...]
    feeds: tuple[str, ...]
    sites: tuple[Site, ...]
    returns: str | None = None
    values: tuple[str, ...] = ()
    limit: _Positive | None = None
    weight: _Positive = 1
    check: CounterCheck | None = None
    asks: tuple[str, ...] = ()  # probes of possible callers; the program checks whether it runs inside one

    def __post_init__(self) -> None:
        """Fill in the sites' defaults. Raise ValueError if a site has a value that the probe lacks."""
        for number, site in enumerate(self.sites):
            if unknown := site.values.keys() - set(self.values):
                raise ValueError(f"sites[{number}]: value {min(unknown)!r} is not among the probe's")
            structs.force_setattr(site, "at", site.at or self.at)
            structs.force_setattr(site, "returns", site.returns or self.returns)

    def site(self, flavour: str, version: tuple[int, ...]) -> Site | None:
        """Return the site of the probe on a server, or None if none is known."""
        return next((site for site in self.sites if site.fits(flavour, version)), None)

    def fed(self, flavour: str, version: tuple[int, ...]) -> frozenset[str]:
        """Return the metrics that the probe feeds on a server."""
        site = self.site(flavour, version)
        return frozenset((*self.feeds, *(site.feeds if site is not None else ())))


class Family(Entry, frozen=True):
    """A group of probes that are enabled and disabled together."""

    source: str
    default: bool
    answers: str


class ProbeCatalog(Entry, frozen=True):
    """The contents of probes.yaml. ``safe`` maps keys to reasons why no exception can cross a function.

    ``known`` contains, for each flavour, the versions whose functions the catalog describes.
    """

    version: Literal[1]
    known: dict[str, VersionRange]
    families: dict[str, Family]
    probes: dict[str, Probe]
    safe: dict[str, str]
    commands: tuple[CommandArguments, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if a probe refers to an unknown family or probe, or lacks a reason in ``safe``."""
        name_entries(self.probes)
        for name, probe in self.probes.items():
            if probe.family not in self.families:
                raise ValueError(f"probes.{name}: unknown family {probe.family}")
            if unknown := set(probe.asks) - self.probes.keys():
                raise ValueError(f"probes.{name}: unknown probe {min(unknown)}")
            for number, site in enumerate(probe.sites):
                if site.absent is None and LEAVE in site.at and site.returns not in self.safe:
                    why = "probes a return without stating why no exception can cross it"
                    raise ValueError(f"probes.{name}.sites[{number}]: {why}")

    def knows(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Return whether the catalog describes this version's functions; True if the version is unknown."""
        return not version or version in self.known[flavour]

    def command(self, flavour: str, version: tuple[int, ...]) -> CommandArguments | None:
        """Return the arguments in which a server receives commands, or None if they are unknown."""
        return next((command for command in self.commands if command.fits(flavour, version)), None)

    def of(self, families: frozenset[str] | None = None) -> list[Probe]:
        """Return the probes of ``families``. None or an empty set selects the default families."""
        wanted = families or frozenset(name for name, family in self.families.items() if family.default)
        return [probe for probe in self.probes.values() if probe.family in wanted]

    def feeding(self, metrics: frozenset[str], flavour: str, version: tuple[int, ...]) -> list[Probe]:
        """Return the default probes that feed ``metrics`` on a server, and the probes in their ``asks``."""
        default = self.of()
        feeding = {probe.name for probe in default if metrics & probe.fed(flavour, version)}
        asked = {name for name in feeding for name in self.probes[name].asks}
        return [probe for probe in default if probe.name in feeding | asked]


@cache
def default_catalog() -> ProbeCatalog:
    """Return the installed catalog."""
    return load(catalog_path("probes.yaml"))


def load(path: Path) -> ProbeCatalog:
    """Read and check the catalog. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(path, ProbeCatalog)
