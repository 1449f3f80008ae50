"""Start three MySQL servers as a group (Group Replication, single-primary mode)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from servers import Server, free_port
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER: Final = "mysql-9.7"
NODES: Final = 3
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
    """A server whose UUID differs from that of the others, although all start from the same template."""

    def _prepare(self) -> None:
        super()._prepare()
        (self.folder.data / "auto.cnf").unlink(missing_ok=True)


class ReplicationGroup:
    """Context manager around three members, of which the first is the primary. All of them are online.

    ``first`` may be running, without a group; it is restarted. Its options apply to all members.
    """

    def __init__(self, first: Server) -> None:
        self._given = tuple(first.options or ())
        self._stack = ExitStack()
        self.nodes: list[Server] = [first, *(_Member(first.name) for _ in range(NODES - 1))]

    def __enter__(self) -> Self:
        first, *others = self.nodes
        ports = [free_port() for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            node.options = [*_OPTIONS, *self._given, *_addresses(number, ports)]
        try:
            if first.running:
                first.stop()
            first.start()
            for node in others:
                self._stack.enter_context(node)
            for node in self.nodes:
                node.sql(*_ACCOUNT)
            first.sql("SET GLOBAL group_replication_bootstrap_group = ON", _START)
            first.sql("SET GLOBAL group_replication_bootstrap_group = OFF")
            for node in others:
                node.sql(_START)
            until(self._online, self._describe, within_s=_WITHIN_S)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all members except the first one, which belongs to the caller."""
        self._stack.close()

    def _online(self) -> bool:
        return all(len(node.sql(_ONLINE)) == NODES for node in self.nodes)

    def _describe(self) -> str:
        return "\n".join(node.error_log.read_text()[-3000:] for node in self.nodes if node.running)


def _addresses(number: int, ports: Sequence[int]) -> tuple[str, ...]:
    """Return the options of the member ``number``; ``ports`` are those of the group communication."""
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
    return (
        f"--server-id={number + 1}",
        f"--loose-group-replication-local-address=127.0.0.1:{ports[number]}",
        f"--loose-group-replication-group-seeds={seeds}",
    )
