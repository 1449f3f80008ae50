"""Read the web configuration file, in the format of Prometheus' exporter-toolkit: TLS, users, headers.

The section ``innoscope_roles`` is an addition to that format.

Unsupported settings are errors, because an ignored setting would give a false impression of security.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from innoscope.common import schema
from innoscope.common.errors import BadFile
from innoscope.daemon.http.roles import ROLES, Roles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)

_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
#: OpenSSL's verify mode for each type of client authentication in exporter-toolkit. The other types request a
#: certificate without verifying it; OpenSSL has no such mode.
_CLIENT_AUTH: Final[Mapping[str, ssl.VerifyMode]] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS: Final = frozenset(
    {
        "Content-Security-Policy",
        "X-Frame-Options",
        "X-Content-Type-Options",
        "X-XSS-Protection",
        "Strict-Transport-Security",
    }
)


_Version: TypeAlias = Annotated[str, Meta(pattern=rf"\A({'|'.join(_VERSIONS)}|)\Z")]
_ClientAuth: TypeAlias = Annotated[str, Meta(pattern=rf"\A({'|'.join(_CLIENT_AUTH)}|)\Z")]


class _TlsFile(schema.Entry, frozen=True):
    """The section ``tls_server_config``. An empty optional key takes its default value."""

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str | None = None
    client_auth_type: _ClientAuth | None = None
    min_version: _Version | None = None

    @property
    def enabled(self) -> bool:
        """Return whether anything is set: an empty section means no TLS, as in exporter-toolkit."""
        return any(getattr(self, name) for name in self.__struct_fields__)

    def __post_init__(self) -> None:
        if self.enabled and not (self.cert_file and self.key_file):
            raise ValueError("cert_file and key_file are both required")
        if ((self.client_auth_type or "NoClientCert") == "NoClientCert") != (not self.client_ca_file):
            raise ValueError("client_ca_file needs a client_auth_type that verifies, and vice versa")


class _HttpFile(schema.Entry, frozen=True):
    """The section ``http_server_config``."""

    http2: bool | None = None
    headers: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.http2:
            raise ValueError("http2 is not supported: omit it or set it to false")
        for name, value in (self.headers or {}).items():
            if name not in _HEADERS or not value.isprintable():
                raise ValueError(f"headers.{name} is not supported")


_RoleName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({'|'.join(ROLES)})\Z")]


class _RolesFile(schema.Entry, frozen=True):
    """The section ``innoscope_roles``: the role of each user, and of each name in a client certificate."""

    users: dict[str, _RoleName] = msgspec.field(default_factory=dict)
    certificates: dict[str, _RoleName] = msgspec.field(default_factory=dict)


class _File(schema.Entry, frozen=True):
    """The contents of the file, before conversion to WebConfig."""

    tls_server_config: _TlsFile | None = None
    http_server_config: _HttpFile | None = None
    basic_auth_users: dict[str, str] | None = None
    innoscope_roles: _RolesFile | None = None

    def __post_init__(self) -> None:
        roles = self.innoscope_roles or _RolesFile()
        for name in roles.users:
            if name not in (self.basic_auth_users or {}):
                raise ValueError(f"innoscope_roles.users.{name} is not in basic_auth_users")
        if roles.certificates and not (self.tls_server_config and self.tls_server_config.client_ca_file):
            raise ValueError("innoscope_roles.certificates needs tls_server_config.client_ca_file")
        for name, hashed in (self.basic_auth_users or {}).items():
            if not hashed.startswith(("$2a$", "$2b$", "$2y$")) or len(hashed) != 60:
                raise ValueError(f"the password of {name} is not a bcrypt hash (htpasswd -nBC 10 {name})")


@dataclass(frozen=True, slots=True)
class WebTls:
    """TLS settings. Paths that are relative in the file have been resolved against the file's directory."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    def context(self) -> ssl.SSLContext:
        """Create the TLS context. Raise BadFile if a file is unreadable, or the key does not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.min_version
        # Renegotiation would let a client waste the server's CPU time.
        context.options |= ssl.OP_NO_RENEGOTIATION
        files = f"{self.cert_file} and {self.key_file}"
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
            if self.client_ca_file is not None:
                files = str(self.client_ca_file)
                context.load_verify_locations(self.client_ca_file)
        except OSError as error:  # includes ssl.SSLError
            raise BadFile(
                f"cannot use {files}: {error.strerror or error}",
                remedy=f"openssl x509 -noout -in {files.partition(' ')[0]}",
            ) from error
        context.verify_mode = self.client_auth
        return context


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The settings of the web configuration file; by default, plain HTTP without authentication."""

    tls: WebTls | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)  # name → bcrypt hash
    headers: Mapping[str, str] = field(default_factory=dict)
    roles: Roles = field(default_factory=Roles)

    @property
    def authenticates(self) -> bool:
        """Return whether every client must authenticate."""
        return bool(self.users) or (self.tls is not None and self.tls.client_auth is ssl.CERT_REQUIRED)


def load(path: Path) -> WebConfig:
    """Read and validate a web configuration file. Raise BadFile if it cannot be read or is invalid."""
    try:
        file = schema.read_yaml(path, _File | None) or _File()  # type: ignore[arg-type]
    except BadFile as error:
        raise BadFile(error.what, remedy=error.remedy or "docs/agent.md lists what is supported") from error
    tls, http, users = file.tls_server_config, file.http_server_config, file.basic_auth_users
    return WebConfig(
        _tls(tls, path.parent) if tls is not None and tls.enabled else None,
        {name: hashed.encode() for name, hashed in (users or {}).items()},
        (http.headers if http else None) or {},
        _roles(file.innoscope_roles or _RolesFile()),
    )


def _roles(file: _RolesFile) -> Roles:
    users, certificates = (
        {name: ROLES[role] for name, role in roles.items()} for roles in (file.users, file.certificates)
    )
    return Roles(users, certificates)


def _tls(file: _TlsFile, folder: Path) -> WebTls:
    return WebTls(
        folder / file.cert_file,
        folder / file.key_file,
        folder / file.client_ca_file if file.client_ca_file else None,
        _CLIENT_AUTH[file.client_auth_type or "NoClientCert"],
        _VERSIONS[file.min_version or "TLS12"],
    )


class Watched:
    """The current configuration, which is reloaded when the file or a certificate changes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: object = None
        self.config = WebConfig()
        self.context: ssl.SSLContext | None = None
        if path is not None:
            self._read(path)

    def current(self) -> tuple[WebConfig, ssl.SSLContext | None]:
        """Return the configuration and its TLS context, reloaded if a file has changed.

        If reloading fails, log the error and return the previous configuration.
        """
        if self._path is not None:
            with self._lock:
                if self._fingerprint(self._path) != self._seen:
                    try:
                        self._read(self._path)
                    except BadFile as error:
                        _log.error("cannot reload the web configuration", extra={"error": error.what})
                    else:
                        _log.info("web configuration reloaded", extra={"file": str(self._path)})
        return self.config, self.context

    def reload(self) -> None:
        """Reload the file at the next request, even if it has not changed."""
        self._seen = None

    def _read(self, path: Path) -> None:
        self._seen = self._fingerprint(path)
        config = load(path)
        context = config.tls.context() if config.tls else None
        self.config, self.context = config, context
        self._seen = self._fingerprint(path)  # including the certificates named in the file

    def _fingerprint(self, path: Path) -> object:
        tls = self.config.tls
        files = (path, tls.cert_file, tls.key_file, tls.client_ca_file) if tls else (path,)
        return tuple(_identity(file) for file in files if file is not None)


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)
