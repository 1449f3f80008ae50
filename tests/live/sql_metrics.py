"""Collect all metrics of a server over SQL, without an agent."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from innoscope.metrics.collectors import sql_catalog, state_catalog
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.state import Heartbeat, StateCollector
from innoscope.target import sql
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from innoscope.target.login import Connection
    from servers import Server

#: The timeout of a login and of a statement. It is long enough for a busy host to answer.
_PATIENCE_S: Final = 60
#: A timestamp in pt-heartbeat's format.
SEVEN_SECONDS_AGO: Final = "DATE_FORMAT(NOW() - INTERVAL 7 SECOND, '%Y-%m-%dT%H:%i:%s.%f')"


def collected(server: Server, heartbeat: Heartbeat | None = None, user: str = "root") -> dict[str, Any]:
    """Return the values of both SQL collectors by series."""
    target = find_one(server.pid)

    def connect() -> Connection:
        return sql.connect(target, user=user, timeout=_PATIENCE_S)

    metrics = SqlCollector(connect, sql_catalog.default(), target.flavour, target.version)
    state = StateCollector(
        connect, state_catalog.default(), target.flavour, target.version, 1, heartbeat, timeout=_PATIENCE_S
    )
    with closing(metrics), closing(state):
        samples = [*metrics.collect(), *state.collect()]
        assert state.shortfall is None
    return {".".join((one.metric, *one.labels)): one.value for one in samples}
