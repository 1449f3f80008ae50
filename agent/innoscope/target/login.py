"""Log in with PyMySQL over a socket of ours; only a verified server is told the password itself."""

from __future__ import annotations

import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pymysql.connections import Connection as Driver
from pymysql.constants import CLIENT

from innoscope.common.errors import BadFile, SqlFailed
from innoscope.target.wire import Budget, tls_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.credentials import Credentials, Tls
    from innoscope.target.wire import Wire

#: Seconds for a login with all its answers, as a multiple of those for one.
_LOGIN: Final = 2
#: Bytes of what a login sends after its first packets: no password, "give me your key", and SHA-1 scrambles.
#: Scrambles of SHA-256 and Ed25519 are longer than the shortest first packet; MySQL 4.0's have 9 bytes.
_SCRAMBLES: Final = (0, 1, 20)
_FIRST_PACKETS: Final = 32
_PLAIN: Final = "sha256_password"


class Connection(Driver):
    """A connection whose answers are bounded. ``verified``: its server is known to be the one that is meant.

    Only a verified server is told the password itself (full authentication of sha256 and caching_sha2).
    """

    server_capabilities: int
    _auth_plugin_name: str

    def __init__(self, account: Credentials, budget: Budget, *, verified: bool, host: str, tls: Tls | None):
        self._budget = budget
        self._verified = verified
        self._tls = tls is not None
        super().__init__(
            host=host,
            user=account.user,
            password=account.password,
            ssl=tls_context(_context(tls), budget) if tls else None,
            ssl_disabled=tls is None,
            autocommit=True,
            charset="utf8mb4",  # known from 5.5.3 on
            program_name="innoscope",
            auth_plugin_map=dict.fromkeys(("mysql_clear_password", "dialog", "mysql_old_password"), _Never),
            defer_connect=True,
        )

    def log_in(self, wire: Wire) -> None:
        """Log in over a connected socket. Raises what PyMySQL does, or SqlFailed before anything is sent."""
        wire.check_greeting()
        self.connect(wire)
        self._budget.login_until = float("inf")

    def _get_server_information(self) -> None:
        """Let PyMySQL read the greeting, and judge by what it has read: by that it is going to log in."""
        super()._get_server_information()  # type: ignore[misc]
        if self._tls and not self.server_capabilities & CLIENT.SSL:
            raise _refused("the server does not speak TLS", "enable TLS on the server")
        self._check_plugin()

    def write_packet(self, payload: bytes) -> None:
        """Send one packet of the login; PyMySQL has no other use for it."""
        if self._budget.logging_in:
            self._check_plugin()
            self._check(payload)
        super().write_packet(payload)

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Let answers take so many seconds."""
        before, self._budget.seconds = self._budget.seconds, seconds
        try:
            yield
        finally:
            self._budget.seconds = before

    def abandon(self) -> None:
        """Close it without a farewell, which a stalled server may not read."""
        self._force_close()  # type: ignore[attr-defined]

    def _check_plugin(self) -> None:
        """Refuse the plugin with which PyMySQL puts the password itself into its first packet over TLS."""
        if self._auth_plugin_name == _PLAIN and not self._verified:
            raise _unverified()

    def _check(self, payload: bytes) -> None:
        password = self.password
        if self.server_public_key:
            raise _refused("the server wants the password encrypted with a key of its own", _OTHER_WAY)
        if password and payload == password + b"\0" and not self._verified:
            raise _unverified()
        if payload != password + b"\0" and len(payload) < _FIRST_PACKETS and len(payload) not in _SCRAMBLES:
            raise _refused("the server wants an old, readable form of the password", _OTHER_WAY)


class LocalConnection(Connection):
    """One that does not leave this host: PyMySQL need not encrypt what nobody else can read."""

    _secure = True


class _Never:
    """Authentication that would hand over the password itself, or as good as."""

    def __init__(self, _connection: object) -> None:
        pass

    def authenticate(self, _packet: object) -> None:
        """Refuse."""
        raise _refused("the server wants the password in clear text", _OTHER_WAY)


_OTHER_WAY: Final = (
    "an account with mysql_native_password or ed25519, or one with caching_sha2_password that the server "
    "remembers: log in with another client first"
)


def budget(timeout: float) -> Budget:
    """Return a budget of so many seconds for each answer, and for a login."""
    return Budget(timeout, time.monotonic() + _LOGIN * timeout)


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's own certificates do not pass it
        context.check_hostname = tls.check_host and tls.ca is not None
        context.verify_mode = ssl.CERT_REQUIRED if tls.ca else ssl.CERT_NONE
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise BadFile(
            f"cannot use the ssl-* files of the option file: {error.strerror or error}",
            remedy=f"openssl x509 -noout -in {tls.ca or tls.cert}",
        ) from error
    return context


def _unverified() -> SqlFailed:
    return _refused(
        "the server wants the password itself, and nothing shows that it is the right server",
        f"ssl-ca in the option file, for TLS over TCP; or {_OTHER_WAY}",
    )


def _refused(what: str, remedy: Any) -> SqlFailed:
    return SqlFailed(f"no SQL: {what}; it was not told", remedy=remedy)
