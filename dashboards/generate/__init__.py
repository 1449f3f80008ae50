"""Generate the dashboards in ``dashboards/grafana`` from the descriptions in this package.

>>> from generate import dashboards
>>> dashboards()["innoscope-server.json"]["title"]
'Innoscope / Server'
"""

from __future__ import annotations

from typing import Any, Final

from generate import agent, contention, dirty_page, fleet, frame, replication, server

ALL: Final = tuple(module.DASHBOARD for module in (fleet, server, dirty_page, contention, replication, agent))


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the JSON of each dashboard, by file name."""
    titles = {one.uid: one.title for one in ALL}
    return {f"{one.uid}.json": frame.dashboard(one, titles) for one in ALL}
