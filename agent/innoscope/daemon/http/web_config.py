"""The web configuration file, in the format of Prometheus' exporter-toolkit: TLS, users, headers.

Unsupported settings are errors, not ignored: otherwise a file could promise more security than it provides.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import BadFile
from innoscope.common.schema import read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)

_TOP: Final = frozenset({"tls_server_config", "http_server_config", "basic_auth_users"})
_TLS: Final = frozenset({"cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version"})
_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
#: exporter-toolkit's types that request a certificate without verifying it are not supported by OpenSSL.
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


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings. Paths are absolute, or relative to the configuration file."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    def context(self) -> ssl.SSLContext:
        """Create the TLS context. Raise BadFile if the files cannot be read or do not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.min_version
        context.options |= (
            ssl.OP_NO_RENEGOTIATION
        )  # expensive for the server only
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
            if self.client_ca_file is not None:
                context.load_verify_locations(self.client_ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise BadFile(
                f"cannot use {self.cert_file} and {self.key_file}: {error.strerror or error}",
                remedy=f"openssl x509 -noout -in {self.cert_file}",
            ) from error
        context.verify_mode = self.client_auth
        return context


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The file's settings. The default is plain HTTP without authentication."""

    tls: Tls | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)  # name → bcrypt hash
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authenticates(self) -> bool:
        """Whether every client must authenticate."""
        return bool(self.users) or (self.tls is not None and self.tls.client_auth is ssl.CERT_REQUIRED)


def load(path: Path) -> WebConfig:
    """Read and check the file; BadFile names the first problem."""
    data: Any = read_yaml(path, Any)
    data = {} if data is None else data
    found = problems(data)
    if found:
        raise BadFile(f"{path}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""))
    tls = data.get("tls_server_config")
    return WebConfig(
        _tls(tls, path.parent) if tls else None,
        {name: hashed.encode() for name, hashed in (data.get("basic_auth_users") or {}).items()},
        (data.get("http_server_config") or {}).get("headers") or {},
    )


def _tls(data: Mapping[str, str], folder: Path) -> Tls:
    client_ca = data.get("client_ca_file")
    return Tls(
        folder / data["cert_file"],
        folder / data["key_file"],
        folder / client_ca if client_ca else None,
        _CLIENT_AUTH[data.get("client_auth_type") or "NoClientCert"],
        _VERSIONS[data.get("min_version") or "TLS12"],
    )


def problems(data: Any) -> list[str]:
    """What is wrong with a parsed file, in words; empty when nothing is."""
    if not isinstance(data, dict):
        return ["the file is not a mapping"]
    found = [f"{key} is not supported" for key in sorted(map(str, data.keys() - _TOP))]
    for key in _TOP & data.keys():
        if data[key] is not None and not isinstance(data[key], dict):
            return [*found, f"{key} is not a mapping"]
    found += _tls_problems(data.get("tls_server_config") or {})
    found += _http_problems(data.get("http_server_config") or {})
    for name, hashed in (data.get("basic_auth_users") or {}).items():
        if (
            not isinstance(hashed, str)
            or not hashed.startswith(("$2a$", "$2b$", "$2y$"))
            or len(hashed) != 60
        ):
            found.append(f"the password of {name} is not a bcrypt hash (htpasswd -nBC 10 {name})")
    return found


def _tls_problems(tls: Mapping[Any, Any]) -> list[str]:
    found = [f"tls_server_config.{key} is not supported" for key in sorted(map(str, tls.keys() - _TLS))]
    if tls and not (tls.get("cert_file") and tls.get("key_file")):
        found.append("tls_server_config needs cert_file and key_file")
    auth = tls.get("client_auth_type") or "NoClientCert"
    if auth not in _CLIENT_AUTH:
        found.append(f"client_auth_type {auth} is not supported, but {', '.join(_CLIENT_AUTH)} are")
    elif (auth == "NoClientCert") != (not tls.get("client_ca_file")):
        found.append("client_ca_file goes with a client_auth_type that verifies, and the other way round")
    if (tls.get("min_version") or "TLS12") not in _VERSIONS:
        found.append(f"min_version {tls['min_version']} is not supported, but {', '.join(_VERSIONS)} are")
    return found


def _http_problems(http: Mapping[Any, Any]) -> list[str]:
    found = [
        f"http_server_config.{key} is not supported"
        for key in sorted(map(str, http.keys() - {"headers", "http2"}))
    ]
    if http.get("http2") is True:
        found.append("http_server_config.http2 is not supported: leave it out or say false")
    headers = http.get("headers") or {}
    if not isinstance(headers, dict):
        return [*found, "http_server_config.headers is not a mapping"]
    for name, value in headers.items():
        if name not in _HEADERS or not isinstance(value, str) or not value.isprintable():
            found.append(f"http_server_config.headers.{name} is not supported")
    return found


class Watched:
    """The current configuration. It is reloaded if the file or a certificate changes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: object = None
        self.config = WebConfig()
        self.context: ssl.SSLContext | None = None
        if path is not None:
            self._read(path)

    def current(self) -> tuple[WebConfig, ssl.SSLContext | None]:
        """Return the configuration and its TLS context."""
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
        self._seen = self._fingerprint(path)  # including the certificates that it names

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
