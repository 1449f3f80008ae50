"""Define incidents in which new connections wait."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from incidents.lab import Incident
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLIENTS: Final = 6
#: The clients' address, which has no name in /etc/hosts.
_CLIENT: Final = "127.0.0.9"
#: The address of the silent name server.
_NAME_SERVER: Final = "127.0.0.10"
#: Contents of resolv.conf. The timeout and the number of attempts are the largest that glibc accepts, so the
#: resolver gives up only after 150 s.
_RESOLV_CONF: Final = f"nameserver {_NAME_SERVER}\noptions timeout:30 attempts:5\n"
_NSSWITCH_CONF: Final = "passwd: files\ngroup: files\nhosts: files dns\n"
_WITHIN_S: Final = 60
#: Shell script: bind-mount the two files in the server's own mount namespace, then exec the server.
_BIND: Final = """
mount --bind "$1/resolv.conf" /etc/resolv.conf &&
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf &&
shift && exec "$@"
"""


@contextlib.contextmanager
def _without_answer(server: Server) -> Iterator[Server]:
    """Connect to a server whose name server never answers, until each connection is waiting for DNS."""
    with _silent_name_server() as queries, _private(server) as private, contextlib.ExitStack() as stack:
        for _ in range(_CLIENTS):
            _connect(stack, private)
            queries.recv(512)
        yield private


@contextlib.contextmanager
def _without_question(server: Server) -> Iterator[Server]:
    """Connect in the same way to a server that does not look up names; each connection gets a reply."""
    with _silent_name_server(), _private(server) as private, contextlib.ExitStack() as stack:
        for _ in range(_CLIENTS):
            assert _connect(stack, private).recv(1)
        yield private


@contextlib.contextmanager
def _silent_name_server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as queries:
        queries.bind((_NAME_SERVER, 53))
        queries.settimeout(_WITHIN_S)
        yield queries


@contextlib.contextmanager
def _private(server: Server) -> Iterator[Server]:
    """Start another server of the same kind that uses only the silent name server."""
    with tempfile.TemporaryDirectory(prefix="innoscope-") as folder:
        (Path(folder) / "resolv.conf").write_text(_RESOLV_CONF)
        (Path(folder) / "nsswitch.conf").write_text(_NSSWITCH_CONF)
        prefix = ("unshare", "--mount", "sh", "-c", _BIND, "sh", folder)
        with Server(server.name, options=server.options, prefix=prefix) as private:
            yield private


def _connect(stack: contextlib.ExitStack, server: Server) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), _WITHIN_S, source_address=(_CLIENT, 0))
    return stack.enter_context(client)


def _resolving(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "connect_dns_auth",
        _without_answer,
        _without_question,
        options=(),
        twin_options=("--skip-name-resolve",),
        what="6 clients connect over TCP, and the DNS server does not answer mysqld's reverse lookups",
    )


INCIDENTS = (
    _resolving("dns-56", "mysql-5.6.24"),
    _resolving("dns-57", "mysql-5.7.22"),
    _resolving("dns-80", "mysql-8.0.31"),
    _resolving("dns-1011", "mariadb-10.11"),
)
