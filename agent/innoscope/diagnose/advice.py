"""Select the advice that applies to a server: all settings that a line mentions must have an effect there.

``probes/catalog/settings.yaml`` lists the servers that have each setting, and ``toggles.yaml`` the servers
that support each toggle.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.common.versions import VersionRange, leading_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A word with an underscore, which can be the name of a setting.
_WORD: Final = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")


class Advice(ServerEntry, frozen=True, kw_only=True):
    """A line of advice that applies only to some of the servers that have the settings it mentions."""

    text: str


class SettingSupport(ServerEntry, frozen=True):
    """The servers that have a setting. An ``optional`` setting exists only with a plugin or in a fork.

    In the ``ignored`` versions of MariaDB, the setting exists but has no effect.
    """

    optional: bool = False
    ignored: VersionRange | None = None

    def works(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Return whether the setting has an effect on a server."""
        ignored = flavour == "mariadb" and self.ignored is not None and version in self.ignored
        return self.fits(flavour, version) and not ignored


class SettingsFile(Entry, frozen=True):
    """The contents of settings.yaml."""

    version: Literal[1]
    settings: dict[str, SettingSupport]


class _Generation(ServerEntry, frozen=True, forbid_unknown_fields=False):
    refused: str | None = None


class ToggleSummary(Entry, frozen=True, forbid_unknown_fields=False):
    """The part of a toggle's catalog entry that is used in reports."""

    title: str
    risk: str
    servers: tuple[_Generation, ...]


class _Toggles(Entry, frozen=True, forbid_unknown_fields=False):
    toggles: dict[str, ToggleSummary]


@cache
def settings() -> Mapping[str, SettingSupport]:
    """Return the settings of the installed catalog. Raise BadFile if it is invalid."""
    return read_yaml(catalog_path("settings.yaml"), SettingsFile).settings


@cache
def toggles() -> Mapping[str, ToggleSummary]:
    """Return all toggles by name. Raise BadFile if the catalog is invalid.

    The catalog file is read directly, because diagnostic code must not import code that changes servers.
    """
    return read_yaml(catalog_path("toggles.yaml"), _Toggles).toggles


def words(text: str) -> list[str]:
    """Return the distinct words of a text that may be names of settings."""
    return list(dict.fromkeys(_WORD.findall(text)))


def lines(advice: Iterable[str | Advice], server: Mapping[str, str]) -> list[str]:
    """Return the lines of advice that apply to a server, given its ``flavour`` and ``version``."""
    flavour, version = _identity(server)
    found = []
    for line in advice:
        limit, text = (line, line.text) if isinstance(line, Advice) else (ServerEntry(), line)
        named = (settings()[word] for word in words(text) if word in settings())
        if limit.fits(flavour, version) and all(one.works(flavour, version) for one in named):
            found.append(text)
    return found


def supported(names: Iterable[str], server: Mapping[str, str]) -> tuple[str, ...]:
    """Return the toggles among ``names`` that are supported on this server."""
    flavour, version = _identity(server)
    return tuple(
        name
        for name in names
        if name in toggles()
        and any(one.fits(flavour, version) and one.refused is None for one in toggles()[name].servers)
    )


def _identity(server: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    """Return the flavour and version. An unknown version is (), which is in no range."""
    return server.get("flavour", ""), leading_numbers(server.get("version", ""))
