"""Log in with PyMySQL over a bounded socket. The password itself is sent only to a verified server."""

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
    import socket
    from collections.abc import Iterator
    from typing import BinaryIO

    from innoscope.target.credentials import Credentials, TlsOptions
    from innoscope.target.unanswered import Unanswered
    from innoscope.target.wire import Wire

#: Time limit for a whole login, as a multiple of the time limit for one response.
_LOGIN: Final = 2
#: Allowed sizes, in bytes, of login packets shorter than _FIRST_PACKETS: 0 (no password), 1 (request for the
#: public key), 20 (SHA-1 scramble). The first packet, and scrambles of SHA-256 and Ed25519, are never so
#: short. Scrambles of MySQL 4.0 (9 bytes) are not allowed.
_SCRAMBLES: Final = (0, 1, 20)
_FIRST_PACKETS: Final = 32
_PLAIN: Final = "sha256_password"
#: Plugins that send the password in clear text or in a weakly protected form.
_WEAK_PLUGINS: Final = ("mysql_clear_password", "dialog", "mysql_old_password")


class Connection(Driver):
    """A connection with bounded responses. If ``verified``, the server is known to be the intended one.

    Only a verified server is sent the password itself (full authentication of sha256 and caching_sha2).
    """

    server_capabilities: int
    #: The server's socket or address, for messages.
    where: str
    _auth_plugin_name: str
    _result: object
    _rfile: BinaryIO
    _sock: socket.socket

    def __init__(
        self, account: Credentials, budget: Budget, *, verified: bool, host: str, tls: TlsOptions | None
    ):
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
            charset="utf8mb4",  # supported since 5.5.3
            program_name="innoscope",
            auth_plugin_map=dict.fromkeys(_WEAK_PLUGINS, _Rejected),
            defer_connect=True,
        )

    def log_in(self, wire: Wire, where: str) -> None:
        """Log in over a socket that is connected to ``where``.

        Raise PyMySQL's errors, or SqlFailed if the login is unsafe.
        """
        self.where = where
        wire.check_greeting()
        self.connect(wire)
        self._budget.login_until = float("inf")

    def _get_server_information(self) -> None:
        """Let PyMySQL parse the greeting, and check the result, which determines how PyMySQL logs in."""
        super()._get_server_information()  # type: ignore[misc]
        if self._tls and not self.server_capabilities & CLIENT.SSL:
            raise _refused("the server does not support TLS", "enable TLS on the server")
        self._check_plugin()

    def write_packet(self, payload: bytes) -> None:
        """Send a packet; during the login, check it first."""
        if self._budget.logging_in:
            self._check_plugin()
            self._check(payload)
        super().write_packet(payload)

    @contextmanager
    def answer_timeout(self, seconds: float) -> Iterator[None]:
        """Set the time limit for each response to ``seconds`` within the context."""
        before, self._budget.seconds = self._budget.seconds, seconds
        try:
            yield
        finally:
            self._budget.seconds = before

    def forget_result(self) -> None:
        """Release the rows and the bytes of the last result, which PyMySQL keeps until the next statement."""
        self._result = None
        self._rfile.close()
        self._rfile = self._sock.makefile("rb")

    def abandon(self) -> None:
        """Close the socket without COM_QUIT: a stalled server might not read it."""
        self._force_close()  # type: ignore[attr-defined]

    def _check_plugin(self) -> None:
        """Raise SqlFailed if the plugin requires the password itself and the server is not verified."""
        if self._auth_plugin_name == _PLAIN and not self._verified:
            raise _unverified()

    def _check(self, payload: bytes) -> None:
        password = self.password
        if self.server_public_key:
            raise _refused(
                "the server requests the password encrypted with the server's public key", _OTHER_ACCOUNT
            )
        if password and payload == password + b"\0" and not self._verified:
            raise _unverified()
        if payload != password + b"\0" and len(payload) < _FIRST_PACKETS and len(payload) not in _SCRAMBLES:
            raise _refused("the server requests the password in the old, insecure format", _OTHER_ACCOUNT)


class LocalConnection(Connection):
    """A connection within this host, over which PyMySQL may send the password unencrypted."""

    _secure = True


class _Rejected:
    """A stand-in for plugins that would send the password in clear text or in a weak form."""

    def __init__(self, _connection: object) -> None:
        pass

    def authenticate(self, _packet: object) -> None:
        """Raise SqlFailed instead of sending the password."""
        raise _refused("the server requests the password in clear text", _OTHER_ACCOUNT)


_OTHER_ACCOUNT: Final = (
    "use an account with mysql_native_password or ed25519; or log in with another client first, so that the "
    "server caches the password of an account with caching_sha2_password"
)


def budget(timeout: float, unanswered: Unanswered | None = None) -> Budget:
    """Return a budget of ``timeout`` seconds per response, and ``_LOGIN`` times that for the login."""
    return Budget(timeout, time.monotonic() + _LOGIN * timeout, unanswered)


def _context(tls: TlsOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # certificates generated by MySQL fail this check
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
        "the server requests the password in clear text, and its identity is not verified",
        f"set ssl-ca in the option file, for TLS over TCP; or {_OTHER_ACCOUNT}",
    )


def _refused(what: str, remedy: Any) -> SqlFailed:
    return SqlFailed(f"no SQL: {what}; the password was not sent", remedy=remedy)
