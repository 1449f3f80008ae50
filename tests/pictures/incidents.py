"""Draw the dashboard *Server* during incidents of the lab: ``python -m pictures.incidents FOLDER [NAME …]``.

The pictures are for readers who do not know the incident: someone who looks at one for ten seconds should be
able to say what is wrong with the server. The files are numbered, and ``FOLDER/key.txt`` names the incidents.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grafana
from incidents.all_incidents import BY_NAME
from live.dashboard_scene import RULES
from pictures.data import Source
from pictures.draw import picture
from prometheus import Prometheus
from safety.agenting import Running
from safety.sensing import Sensing
from servers import Server

if TYPE_CHECKING:
    from incidents.lab import Incident

#: Incidents with different causes, in no particular order.
_CHOSEN: Final = (
    "slow-reads-1145", "row-lock-80", "disk-full-80", "cpu-saturated-57", "dirty-limit-57",
    "flushing-storm-57", "metadata-lock-57", "thread-concurrency-57", "slow-commits-80", "latch-80",
)  # fmt: skip
_INTERVAL_S: Final = 2
#: Seconds without load before the incident, and of the incident.
_CALM_S, _STALL_S = 20, 60
#: Height of the pictures in Grafana's grid units, measured from the top of the dashboard.
_TOP: Final = 32
_NAME: Final = "under test"


def main() -> None:
    """Draw one picture for each incident."""
    parser = argparse.ArgumentParser(prog="pictures.incidents", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*BY_NAME, []])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    key = options.folder / "key.txt"
    for number, name in enumerate(options.names or _CHOSEN, 1):
        path = options.folder / f"{number}.png"
        _draw(BY_NAME[name], path)
        with key.open("a") as file:
            file.write(f"{path.name}: {name}: {BY_NAME[name].what}\n")
        print(f"{path}: {name}", flush=True)


def _draw(incident: Incident, path: Path) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-")))
        folder.chmod(0o755)  # the agent runs as nobody
        os.environ["INNOSCOPE_RUN"] = str(folder)
        server = stack.enter_context(Server(incident.server, options=incident.options))
        if incident.setup is not None:
            incident.setup(server)
        sensing = stack.enter_context(Sensing(only=[server]))
        agent = stack.enter_context(Running(server, sensor=sensing.path))
        agent.until(lambda scrape: scrape.value("sql_up") == 1)
        prometheus = stack.enter_context(
            Prometheus(folder, agent.port, interval_s=_INTERVAL_S, rules=[RULES])
        )
        began = time.time()
        time.sleep(_CALM_S)
        stack.enter_context(incident.stall(server))
        time.sleep(_STALL_S)
        source = Source(prometheus, began, time.time(), _INTERVAL_S, "12s", {"server": _NAME})
        picture(grafana.dashboards()["innoscope-server"], source, path, rows=_TOP)


if __name__ == "__main__":
    main()
