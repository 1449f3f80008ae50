"""Start and stop one server with its own directory."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pymysql

from servers import launch, template
from servers.errors import ServerError
from servers.fetch import Installation, fetch
from servers.folder import Folder
from servers.keeper import Keeper
from servers.ready import wait_ready

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pymysql.connections import Connection

#: Maximum seconds to start or to stop: several times what a server takes on a host that is short of CPU time.
_PATIENCE_S = 180

#: Sockets that reserve the ports of ``free_port`` until this process exits.
_RESERVED: list[socket.socket] = []


class Server:
    """Context manager around one mysqld with its own data directory.

    ``options`` follow the defaults (see ``launch``). ``kill()`` and ``stop()`` keep the data directory, so
    that crash tests can call ``start()`` again. ``close()`` and the block's end remove the directory.
    ``prefix`` is a command that sets up namespaces or limits and then execs the server.
    """

    def __init__(
        self,
        name: str,
        *,
        options: launch.Options | None = None,
        from_template: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        self.installation: Installation = fetch(name)
        self.spec = self.installation.spec
        self.name = name
        self.options = options
        self.port = 0
        self._from_template = from_template
        self._prefix = prefix
        self._folder: Folder | None = None
        self._keeper: Keeper | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the server. A clean stop takes up to two seconds, and the data directory is removed anyway."""
        self.close()

    @property
    def folder(self) -> Folder:
        """Return the server's directory. Raise ServerError before the first start."""
        if self._folder is None:
            raise ServerError(f"{self.name} was not started")
        return self._folder

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the server's process, a child of this process."""
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        """Return whether the process is still running."""
        return self._process is not None and self._process.poll() is None

    @property
    def socket(self) -> Path:
        """Return the path of the server's Unix socket on the host."""
        return self.folder.socket

    @property
    def error_log(self) -> Path:
        """Return the path of the error log, which covers all starts of the server."""
        return self.folder.error_log

    @property
    def version(self) -> str:
        """Return the result of ``SELECT VERSION()``."""
        return str(self.sql("SELECT VERSION()")[0][0])

    def connect(self, **changes: Any) -> Connection[Any]:
        """Connect as root over the socket, with autocommit; with ``autocommit=None``, send no statement."""
        settings: dict[str, Any] = {
            "unix_socket": str(self.socket),
            "user": "root",
            "autocommit": True,
            "ssl_disabled": True,  # today's OpenSSL does not support the old servers' TLS
            "connect_timeout": 30,
        }
        return pymysql.connect(**{**settings, **changes})

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements on one new connection; return the rows of the last one."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self, *, wait: bool = True, timeout: float = _PATIENCE_S) -> None:
        """Start the server on its data directory, old or new. If ``wait``, return once it accepts SQL."""
        if self.running:
            raise ServerError(f"{self.name} is running already")
        if self._folder is None:
            self._prepare()
        self._spawn()
        if wait:
            self.wait_ready(timeout)

    def wait_ready(self, timeout: float = _PATIENCE_S) -> None:
        """Return once the server accepts SQL. If it exits or takes too long, fail with the end of its log."""
        wait_ready(self.process, lambda: self.connect(autocommit=None), self.error_log, timeout)

    def stop(self, timeout: float = _PATIENCE_S) -> int:
        """Send SIGTERM, and SIGKILL after ``timeout`` seconds; return the exit status, 0 if not running."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._reap()

    def kill(self) -> None:
        """Crash the server with SIGKILL and reap it. The data directory is kept."""
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """Kill the process and remove the directory."""
        if self._process is not None:
            self.kill()
        if self._folder is not None:
            self._folder.remove()
        if self._keeper is not None:
            self._keeper.close()
        self._folder = self._keeper = None

    def _reap(self) -> int:
        process = self.process
        code = process.wait()
        if self._keeper is not None:
            self._keeper.forget(process.pid)
        self._process = None
        return code

    def _prepare(self) -> None:
        if self._from_template:
            template.ensure(self.installation, self._make_template)
        self._keeper = Keeper()
        self._folder = Folder(self.installation)
        for place in self._folder.places:
            self._keeper.remove(place)
        if self._from_template:
            template.copy(self.installation, self._folder, launch.arguments(self.options))
        else:
            template.initialise(self.installation, self._folder)

    def _make_template(self) -> None:
        """Start the server for the first time, so that it creates its logs and system tables."""
        with Server(self.name, from_template=False) as first:
            first.stop()
            template.keep(self.installation, first.folder)

    def _spawn(self) -> None:
        self.port = free_port()
        command = [*self._prefix, *launch.command(self.installation, self.folder, self.port, self.options)]
        with self.error_log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self.installation.environment,
                start_new_session=True,  # Ctrl-C must end only the test, which then stops the server
            )
        assert self._keeper is not None
        self._keeper.watch(self._process.pid)


def free_port() -> int:
    """Return a free TCP port of the loopback address, and reserve it until this process exits.

    The kernel gives a bound port to no other process that asks for any port. A server can bind it, because
    servers and this socket set SO_REUSEADDR, and this socket does not listen (inet_csk_bind_conflict in
    net/ipv4/inet_connection_sock.c).
    """
    reserving = socket.socket()
    reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserving.bind(("127.0.0.1", 0))
    _RESERVED.append(reserving)
    return int(reserving.getsockname()[1])
