"""Start three MariaDB servers as a Galera cluster.

The servers start from the same template. Their data directories look like those of a cluster after a power
failure. Galera restores the cluster once all members are connected (pc.recovery), without copying data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusters.cluster import NODES, Cluster
from servers import Server, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER: Final = "mariadb-10.11-galera"
_LIBRARY: Final = "usr/lib/galera/libgalera_smm.so"
_WITHIN_S: Final = 15
_UUIDS: Final = tuple(f"6a1e3a1{number}-0000-11f0-8000-00000000000{number}" for number in range(1, NODES + 1))
#: Content of grastate.dat, according to which all nodes have applied the same transactions.
_POSITION: Final = """\
# GALERA saved state
version: 2.1
uuid:    6a1e3a10-0000-11f0-8000-000000000000
seqno:   0
safe_to_bootstrap: 0
"""
#: Content of gvwstate.dat, which lists the members of the cluster.
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
    """A server that is member ``number`` of the cluster."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name)
        self._number = number

    def _prepare(self) -> None:
        super()._prepare()
        _mark(self, self._number)


def _mark(server: Server, number: int) -> None:
    """Write files into a stopped server's data directory that make the server a member of the cluster."""
    members = "\n".join(f"member: {uuid} 0" for uuid in _UUIDS)
    view = _VIEW.format(own=_UUIDS[number], first=_UUIDS[0], members=members)
    data = server.folder.data
    (data / "grastate.dat").write_text(_POSITION)
    (data / "gvwstate.dat").write_text(view)


class GaleraCluster(Cluster):
    """Context manager around three nodes. The block begins once all of them are synced.

    ``provider`` contains settings of the Galera library, such as ``gcs.fc_limit=16``.
    """

    def __init__(self, first: Server, provider: Sequence[str] = ()) -> None:
        super().__init__(first, [_Node(first.name, number) for number in range(1, NODES)], _WITHIN_S)
        self._provider = tuple(provider)

    def status(self, node: Server, name: str) -> str:
        """Return the value of the status variable ``wsrep_NAME``."""
        return str(node.sql(f"SHOW GLOBAL STATUS LIKE 'wsrep_{name}'")[0][1])

    def _options(self, number: int, ports: Sequence[int]) -> list[str]:
        node, port = self.nodes[number], ports[number]
        settings = (
            "base_host=127.0.0.1",
            f"base_port={port}",
            f"gmcast.listen_addr=tcp://127.0.0.1:{port}",
            f"ist.recv_addr=127.0.0.1:{free_port()}",
            "gcache.size=16M",
            *self._provider,
        )
        addresses = ",".join(f"127.0.0.1:{one}" for one in ports)
        return [
            *self._given,
            *_OPTIONS,
            f"--wsrep-provider={node.installation.home / _LIBRARY}",
            f"--wsrep-cluster-address=gcomm://{addresses}",
            f"--wsrep-provider-options={';'.join(settings)}",
        ]

    def _join(self) -> None:
        first, *others = self.nodes
        _mark(first, 0)
        first.start(wait=False)
        for node in others:
            self._stack.callback(node.close)
            node.start(wait=False)
        for node in self.nodes:
            node.wait_ready(20)

    def _joined(self) -> bool:
        return all(self.status(node, "local_state_comment") == "Synced" for node in self.nodes)
