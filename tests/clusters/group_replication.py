"""Start three MySQL servers as a group (Group Replication, single-primary mode)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusters.cluster import NODES, Cluster
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER: Final = "mysql-9.7"
_WITHIN_S: Final = 90
_OPTIONS: Final = (
    "--log-bin=binlog",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--report-host=127.0.0.1",
    "--innodb-buffer-pool-size=32M",
    "--plugin-load-add=group_replication.so",
    "--loose-group-replication-group-name=6a1e3a10-0000-11f0-8000-000000000000",
    "--loose-group-replication-start-on-boot=OFF",
    "--loose-group-replication-ip-allowlist=127.0.0.1/8",
    "--loose-group-replication-recovery-get-public-key=ON",
    "--loose-group-replication-member-expel-timeout=3600",
)
_ACCOUNT: Final = (
    "SET SESSION sql_log_bin = 0",
    "CREATE USER copy@'%'",
    "GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM ON *.* TO copy@'%'",
)
_START: Final = "START GROUP_REPLICATION USER='copy'"
_ONLINE: Final = "SELECT 1 FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"


class _Member(Server):
    """A server that generates its own UUID, because all members start with the UUID in the template."""

    def _prepare(self) -> None:
        super()._prepare()
        (self.folder.data / "auto.cnf").unlink(missing_ok=True)


class ReplicationGroup(Cluster):
    """Context manager around three members. The block begins once all are online; the first is primary."""

    def __init__(self, first: Server) -> None:
        super().__init__(first, [_Member(first.name) for _ in range(NODES - 1)], _WITHIN_S)

    def _options(self, number: int, ports: Sequence[int]) -> list[str]:
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
        return [
            *_OPTIONS,
            *self._given,
            f"--server-id={number + 1}",
            f"--loose-group-replication-local-address=127.0.0.1:{ports[number]}",
            f"--loose-group-replication-group-seeds={seeds}",
        ]

    def _join(self) -> None:
        first, *others = self.nodes
        first.start()
        for node in others:
            self._stack.enter_context(node)
        for node in self.nodes:
            node.sql(*_ACCOUNT)
        first.sql("SET GLOBAL group_replication_bootstrap_group = ON", _START)
        first.sql("SET GLOBAL group_replication_bootstrap_group = OFF")
        for node in others:
            node.sql(_START)

    def _joined(self) -> bool:
        return all(len(node.sql(_ONLINE)) == NODES for node in self.nodes)
