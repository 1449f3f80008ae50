"""Start three MariaDB servers as a Galera cluster.

The servers start from the same template, and their data folders say that they were a cluster that lost its
power. Galera restores the cluster once all members have met (pc.recovery), without copying data between them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from servers import Server, free_port
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER: Final = "mariadb-10.11-galera"
NODES: Final = 3
_LIBRARY: Final = "usr/lib/galera/libgalera_smm.so"
_WITHIN_S: Final = 15
_UUIDS: Final = tuple(f"6a1e3a1{number}-0000-11f0-8000-00000000000{number}" for number in range(1, NODES + 1))
#: grastate.dat: all nodes have applied the same transactions.
_POSITION: Final = """\
# GALERA saved state
version: 2.1
uuid:    6a1e3a10-0000-11f0-8000-000000000000
seqno:   0
safe_to_bootstrap: 0
"""
#: gvwstate.dat: the members of the cluster.
_VIEW: Final = """\
my_uuid: {own}
#vwbeg
view_id: 3 {first} 1
bootstrap: 0
{members}
#vwend
"""
_OPTIONS: Final = (
    "--wsrep-on=ON",
    "--wsrep-cluster-name=innoscope",
    "--wsrep-sst-method=skip",
    "--wsrep-node-address=127.0.0.1",
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--innodb-buffer-pool-size=32M",
)


class _Node(Server):
    """A server that is the member ``number`` of the cluster."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name)
        self._number = number

    def _prepare(self) -> None:
        super()._prepare()
        _mark(self, self._number)


def _mark(server: Server, number: int) -> None:
    """Make a server that does not run a member of the cluster."""
    members = "\n".join(f"member: {uuid} 0" for uuid in _UUIDS)
    view = _VIEW.format(own=_UUIDS[number], first=_UUIDS[0], members=members)
    data = server.folder.data
    (data / "grastate.dat").write_text(_POSITION)
    (data / "gvwstate.dat").write_text(view)


class GaleraCluster:
    """Context manager around three nodes. The block begins once all of them are synced.

    ``first`` may be running, without Galera; it is restarted as the first node. Its options apply to all
    nodes. ``provider`` are settings of Galera, such as ``gcs.fc_limit=16``.
    """

    def __init__(self, first: Server, provider: Sequence[str] = ()) -> None:
        self._given = tuple(first.options or ())
        self._provider = tuple(provider)
        self._stack = ExitStack()
        self.nodes: list[Server] = [first, *(_Node(first.name, number) for number in range(1, NODES))]

    def __enter__(self) -> Self:
        first, *others = self.nodes
        ports = [free_port() for _ in self.nodes]
        for node, port in zip(self.nodes, ports, strict=True):
            node.options = [*self._given, *_OPTIONS, *self._galera(node, port, ports)]
        try:
            if first.running:
                first.stop()
            _mark(first, 0)
            first.start(wait=False)
            for node in others:
                self._stack.callback(node.close)
                node.start(wait=False)
            for node in self.nodes:
                node.wait_ready(20)
            until(self._synced, self._describe, within_s=_WITHIN_S)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all nodes except the first one, which belongs to the caller."""
        self._stack.close()

    def status(self, node: Server, name: str) -> str:
        """Return the value of the status variable ``wsrep_NAME``."""
        return str(node.sql(f"SHOW GLOBAL STATUS LIKE 'wsrep_{name}'")[0][1])

    def _galera(self, node: Server, port: int, ports: Sequence[int]) -> tuple[str, ...]:
        settings = (
            "base_host=127.0.0.1",
            f"base_port={port}",
            f"gmcast.listen_addr=tcp://127.0.0.1:{port}",
            f"ist.recv_addr=127.0.0.1:{free_port()}",
            "gcache.size=16M",
            *self._provider,
        )
        addresses = ",".join(f"127.0.0.1:{one}" for one in ports)
        return (
            f"--wsrep-provider={node.installation.home / _LIBRARY}",
            f"--wsrep-cluster-address=gcomm://{addresses}",
            f"--wsrep-provider-options={';'.join(settings)}",
        )

    def _synced(self) -> bool:
        return all(self.status(node, "local_state_comment") == "Synced" for node in self.nodes)

    def _describe(self) -> str:
        return "\n".join(node.error_log.read_text()[-3000:] for node in self.nodes if node.running)
