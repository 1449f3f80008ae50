"""Look up toggles in ``probes/catalog/toggles.yaml``, and convert between user values and raw values.

``raws`` converts the user's value to the raw values to write; ``spoken`` converts raw values for display.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from innoscope.common.data import catalog_path
from innoscope.common.errors import BadFile
from innoscope.common.schema import read_yaml
from innoscope.toggles import catalog_file
from innoscope.toggles.model import ChangeRefused, NotOnThisServer, same

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from innoscope.toggles.model import Assignment, Backend, Domain, Raw, Toggle, ToggleGeneration

_NUMBER: Final = re.compile(r"\d{1,20}", re.ASCII)
_NAMES: Final = {"mysql": "MySQL", "mariadb": "MariaDB"}


def load(path: Path | None = None) -> dict[str, Toggle]:
    """Return all toggles by name, in file order.

    Raise BadFile if the file cannot be read or is invalid. The error names the invalid entry.
    """
    path = path or catalog_path("toggles.yaml")
    try:
        return read_yaml(path, catalog_file.ToggleCatalogFile).by_name()
    except BadFile as error:
        remedy = error.remedy or "reinstall innoscope: this changes no server"
        raise BadFile(error.what, remedy=remedy) from error


def generation(toggle: Toggle, flavour: str, version: tuple[int, ...]) -> ToggleGeneration:
    """Return the toggle's entry for a server. Raise NotOnThisServer if the server does not support it."""
    known = [one for one in toggle.generations if one.flavour == flavour]
    remedy = f"innoscope toggle show {toggle.name}"
    server = f"{_NAMES.get(flavour, flavour)} {_dotted(version)}".rstrip()
    if not version:
        raise NotOnThisServer(
            f"the version of this {server} is unknown, so nothing is attempted", remedy=remedy
        )
    for one in known:
        if version in one.versions:
            if one.refused is not None:
                why = "; ".join(
                    (one.refused, *(f"by {kind}: {reason}" for kind, reason in one.never.items()))
                )
                raise NotOnThisServer(f"{toggle.name}: not on {server}: {why}", remedy=remedy)
            return one
    raise NotOnThisServer(f"{toggle.name} is not known for {server}: {_extent(known)}", remedy=remedy)


def raws(backend: Backend, toggle: Toggle, value: str) -> tuple[Raw, ...]:
    """Return the value to write for each assignment of the backend.

    ``value`` is one of the toggle's words or a number. Raise ChangeRefused, with the allowed values, if
    the value is invalid.
    """
    text = value.strip().lower()
    if not text:
        choices = allowed(backend, toggle)
        raise ChangeRefused(f"{toggle.name} needs a value: {choices}", remedy=_usage(toggle, "VALUE"))
    return tuple(_raw(one, backend, toggle, toggle.domain, text) for one in backend.assignments)


def allowed(backend: Backend, toggle: Toggle) -> str:
    """Return the values that this backend accepts, such as ``on, off`` or ``0 to 1000 threads``."""
    domain = toggle.domain
    own = [one for one in backend.assignments if one.bound is None]
    if domain.words:
        return ", ".join(word for word in domain.words if all(word in (one.values or {}) for one in own))
    lows, highs = zip(*(_limits(one, domain) for one in own), strict=True)
    return f"{max(lows):.0f} to {min(highs):.0f} {domain.unit or ''}".rstrip()


def spoken(backend: Backend, toggle: Toggle, raws: Sequence[Raw | None]) -> str:
    """Return the toggle's value for display, such as ``off``, ``on (40)``, ``200`` or ``mixed (1, 0)``.

    ``raws`` contains the current values of the assignments. If one was not read (None), return ``unknown``.
    """
    pairs = [pair for pair in zip(backend.assignments, raws, strict=True) if pair[0].bound is None]
    if any(raw is None for _, raw in pairs):
        return "unknown"
    if not toggle.domain.words:
        return ", ".join(dict.fromkeys(_unscaled(one, raw) for one, raw in pairs))
    return _as_word(toggle.domain, pairs)


def _as_word(domain: Domain, pairs: Sequence[tuple[Assignment, Raw | None]]) -> str:
    """Return the word that fits all settings, else the values: ``off``, ``on (40)``, ``mixed (1, 0)``."""
    exact = [{word for word, raw in (one.values or {}).items() if same(raw, now)} for one, now in pairs]
    loose = [found or ({"on"} & set(domain.words)) for found in exact]
    common = set.intersection(*loose)
    values = ", ".join(_shown(one, now) for one, now in pairs)
    word = next((word for word in domain.words if word in common), None)
    if word is None:
        return f"mixed ({values})" if len(pairs) > 1 else values
    return word if all(word in found for found in exact) else f"{word} ({values})"


def _shown(one: Assignment, raw: Raw | None) -> str:
    if any(isinstance(value, bool) for value in (one.values or {}).values()):
        return "on" if same(raw, True) else "off"
    return str(raw)


def _raw(one: Assignment, backend: Backend, toggle: Toggle, domain: Domain, text: str) -> Raw:
    if domain.words:
        if one.values is None or text not in one.values:
            raise _not_allowed(backend, toggle, text)
        return one.values[text]
    if one.to is not None:
        return one.to
    low, high = _limits(one, domain)
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise _not_allowed(backend, toggle, text)
    return int(int(text) * (one.scale or 1))


def _not_allowed(backend: Backend, toggle: Toggle, text: str) -> ChangeRefused:
    choices = allowed(backend, toggle)
    return ChangeRefused(
        f"{toggle.name} cannot be {text:.40} on this server: it takes {choices}",
        remedy=_usage(toggle, choices.split(",")[0].split(" ")[0]),
    )


def _limits(one: Assignment, domain: Domain) -> tuple[float, float]:
    low = domain.low if one.low is None else one.low
    high = domain.high if one.high is None else one.high
    return (0.0 if low is None else low), (math.inf if high is None else high)


def _unscaled(one: Assignment, raw: Raw | None) -> str:
    if raw is None or isinstance(raw, str):
        return str(raw)
    number = raw / one.scale if one.scale else raw
    return f"{number:.0f}" if number == int(number) else f"{number:.6g}"


def _usage(toggle: Toggle, value: str) -> str:
    return f"innoscope toggle set {toggle.name} {value}".rstrip()


def _extent(known: Sequence[ToggleGeneration]) -> str:
    """Describe the range of versions that the catalog covers."""
    if not known:
        return "the catalog has no servers of this kind"
    first = min(one.versions.first for one in known)
    last = max(one.versions.last or () for one in known)
    versions = f"{_dotted(first)} to {_dotted(last)}"
    return f"the catalog covers {versions}; this version has not been verified"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
