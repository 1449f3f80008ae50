"""Read the addresses of agents from options, from a list, or from a Prometheus file_sd file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import field

from innoscope.common import schema
from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: The address of the agent on this host.
LOCAL: Final = "http://127.0.0.1:9977"
_PORT: Final = 9977
#: Suffixes of file_sd files. Prometheus requires one of them.
_FILE_SD: Final = (".yaml", ".yml", ".json")
#: Maximum number of agents.
_MAX: Final = 20_000
_HOST: Final = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_EXAMPLE: Final = "for example db1.example.net:9977 or https://db1.example.net:9977"


@dataclass(frozen=True, slots=True, order=True)
class AgentAddress:
    """The address of an agent."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the URL, without a path."""
        return f"{self.scheme}://[{self.host}]:{self.port}" if ":" in self.host else self._plain

    @property
    def is_on_this_host(self) -> bool:
        """Return whether the host is a loopback address or ``localhost``."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def folder_name(self) -> str:
        """Return a folder name that identifies the agent's host and port."""
        return f"{self.host.replace(':', '_')}_{self.port}"

    @property
    def _plain(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class _Group(schema.Entry, frozen=True):
    """A group of targets in a file_sd file."""

    targets: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)


def parse(text: str, scheme: str) -> AgentAddress:
    """Parse a URL or ``HOST:PORT``. Raise BadFile if it is malformed. The port is 9977 by default."""
    try:
        parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
        port = parts.port or _PORT
    except ValueError:
        raise _malformed(text) from None
    host = parts.hostname or ""
    more = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or host.startswith(".") or more:
        raise _malformed(text)
    if parts.username is not None or parts.password is not None:
        raise BadFile("an agent's address must not contain a user or a password", remedy="--basic-auth-file")
    return AgentAddress(parts.scheme, host, port)


def load(path: Path, scheme: str) -> list[AgentAddress]:
    """Read a list of agents, one per line, or a file_sd file (``.yaml``, ``.yml`` or ``.json``).

    In a file_sd file, the ``__scheme__`` label overrides ``scheme``. Raise BadFile if the file cannot be
    read, is invalid, or names no agents.
    """
    if path.suffix in _FILE_SD:
        groups = schema.read_yaml(path, tuple[_Group, ...])
        found = [
            parse(target, group.labels.get("__scheme__", scheme))
            for group in groups
            for target in group.targets
        ]
    else:
        found = [parse(line, scheme) for line in _lines(path)]
    if not found:
        raise BadFile(f"{path} names no agents", remedy=_EXAMPLE)
    return found


def unique(agents: Iterable[AgentAddress]) -> list[AgentAddress]:
    """Return the agents without duplicates, in their order. Raise BadFile if there are too many."""
    found = list(dict.fromkeys(agents))
    if len(found) > _MAX:
        raise BadFile(f"{len(found):,} agents are more than {_MAX:,}", remedy="use several files")
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadFile(f"cannot read {path}: {why}", remedy=f"ls -l {path}") from error
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _malformed(text: str) -> BadFile:
    return BadFile(f"{text[:300]!r} is not an agent's address", remedy=_EXAMPLE)
