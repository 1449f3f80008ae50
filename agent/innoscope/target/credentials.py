"""Read accounts from option files, as the mysql client does.

Passwords are read only from option files; they are never taken from or put on a command line.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Read in this order; later files override earlier ones. ``!include`` and ``!includedir`` are ignored.
DEFAULT_FILES = (Path("/etc/my.cnf"), Path("/etc/mysql/my.cnf"), Path("~/.my.cnf"))
#: Option groups that are read. In each file, the second group overrides the first.
GROUPS = ("client", "client-innoscope")
_MODES = ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_OFF = ("0", "off", "false")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A database account. ``repr`` omits the password."""

    user: str
    password: str = field(repr=False, default="")
    tls: TlsOptions | None = None


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS options (``ssl-*`` in mysql and mariadb). Without ``ca``, certificates are not verified."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    check_host: bool = False


@dataclass(frozen=True, slots=True)
class LoginOptions:
    """The option file and user to pass to ``find``; None means the default."""

    defaults_file: str | None = None
    user: str | None = None


def find(options_file: str | None = None, user: str | None = None) -> Credentials:
    """Return the account from ``options_file``, else from the default files.

    ``user`` overrides the user in the files. The default is the operating-system user that we run as.
    Raise BadFile if ``options_file`` cannot be read, or if a file is world-writable.
    """
    values: dict[str, str] = {}
    for path in _files(options_file):
        groups = _parse(path)
        for group in GROUPS:
            values |= groups.get(group, {})
    return Credentials(user or values.get("user") or _system_user(), values.get("password", ""), _tls(values))


def _tls(values: Mapping[str, str]) -> TlsOptions | None:
    """Return the TLS settings; None if the options do not request TLS, or disable it."""
    mode = values.get("ssl-mode", "").upper()
    requested = any(name in values for name in ("ssl", "ssl-ca", "ssl-cert")) or mode in _MODES
    if not requested or mode == "DISABLED" or values.get("ssl", "1").lower() in _OFF:
        return None
    verify = mode == "VERIFY_IDENTITY" or values.get("ssl-verify-server-cert", "0").lower() not in _OFF
    return TlsOptions(values.get("ssl-ca"), values.get("ssl-cert"), values.get("ssl-key"), verify)


def files_with_account(options_file: str | None = None) -> list[Path]:
    """Return the option files that set a user or a password.

    Raise BadFile if one cannot be read or is world-writable.
    """
    found = []
    for path in _files(options_file):
        groups = _parse(path)
        if any({"user", "password"} & groups.get(group, {}).keys() for group in GROUPS):
            found.append(path)
    return found


def world_readable_files(options_file: str | None = None) -> list[Path]:
    """Return the world-readable option files that contain a password.

    Raise BadFile if one cannot be read or is world-writable.
    """
    return [
        path
        for path in _files(options_file)
        if path.stat().st_mode & stat.S_IROTH
        and any("password" in _parse(path).get(group, {}) for group in GROUPS)
    ]


def _files(options_file: str | None) -> Iterable[Path]:
    if options_file is not None:
        path = Path(options_file).expanduser()
        if not os.path.lexists(path):
            raise BadFile(
                f"cannot read the option file {path}: no such file",
                remedy="printf '[client]\\nuser=…\\npassword=…\\n' > FILE",
            )
        return (path,)
    return [path.expanduser() for path in DEFAULT_FILES if os.access(path.expanduser(), os.R_OK)]


def _parse(path: Path) -> dict[str, dict[str, str]]:
    """Parse an option file into ``{group: {option: value}}``.

    Raise BadFile if it cannot be read or is world-writable.
    """
    try:
        if path.stat().st_mode & stat.S_IWOTH:
            raise BadFile(f"cannot use {path}: it is world-writable", remedy=f"chmod 600 {path}")
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise BadFile(
            f"cannot read the option file {path}: {error.strerror}", remedy=f"ls -l {path}"
        ) from error
    groups: dict[str, dict[str, str]] = {}
    for group, name, value in _options(text):
        groups.setdefault(group, {})[name] = value
    return groups


def _options(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield ``(group, option, value)`` in file order. Quotes around values are removed, as in mysql."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and line[0] not in "#;!":
            name, _, value = line.partition("=")
            value = value.strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
                value = value[1:-1]
            yield group, name.strip().replace("_", "-"), value


def _system_user() -> str:
    """Return the name of our effective uid, as MariaDB's client does; the uid itself if it has no name.

    ``unix_socket`` and ``auth_socket`` compare this name with the account's. LOGNAME and USER are not used,
    because they may still name another user, for example after ``su``.
    """
    uid = os.geteuid()
    if uid == 0:
        return "root"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
