"""Start the subject of a test by name: a server, or a cluster whose first node is tested."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from clusters import galera, group_replication
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.launch import Options

#: Clusters by name. The tests of wait classes and toggles cover the clusters, too.
CLUSTERS: Final = {"galera": galera.GaleraCluster, "group-replication": group_replication.ReplicationGroup}
_SERVERS: Final = {"galera": galera.SERVER, "group-replication": group_replication.SERVER}


def server_of(name: str) -> str:
    """Return the name of the server that a cluster's nodes run. Return any other name unchanged."""
    return _SERVERS.get(name, name)


@contextmanager
def first_node(name: str, options: Options | None = None) -> Iterator[Server]:
    """Yield a running server, or the first node of a running cluster."""
    with Server(server_of(name), options=options) as server:
        if name in CLUSTERS:
            with CLUSTERS[name](server):
                yield server
        else:
            yield server
