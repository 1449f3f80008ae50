"""``python -m incidents.healthy [--server NAME] [LOAD …]``: diagnose healthy loads; count false alarms."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from incidents.counted import Counted, counting
from incidents.healthy_loads import BY_NAME, SERVERS, TRUTHS
from incidents.lab import diagnose
from servers import Server

if TYPE_CHECKING:
    from incidents.healthy_loads import Healthy

SECONDS: Final = 15.0
FILE: Final = Path(__file__).parents[2] / "build" / "healthy.json"

Line = dict[str, Any]


def main() -> int:
    """Run the loads; return 0 if there were no false alarms, otherwise 1."""
    options = _options()
    failures = 0
    for server in options.server or SERVERS:
        for name in options.loads or BY_NAME:
            failures += _one(BY_NAME[name], server, options.seconds)
    print(f"{failures or 'nothing'} wrong; {FILE}")
    return int(failures > 0)


def _one(load: Healthy, server: str, seconds: float) -> int:
    """Run a load; store and print the result. Return the number of false alarms, or 1 if the load failed."""
    title = f"{server:<14} {load.name:<22}"
    try:
        line = observed(load, server, seconds)
    except Exception as error:  # continue with the other loads
        print(f"{title} failed: {type(error).__name__}: {error}", flush=True)
        return 1
    keep(line)
    alarms = false_alarms(line)
    said = ", ".join(line["findings"]) or "nothing wrong"
    print(f"{title} {said}{_shown(line, alarms)}", flush=True)
    return len(alarms)


def observed(load: Healthy, name: str, seconds: float = SECONDS) -> Line:
    """Run a load on a new server and diagnose it; count its threads and work during the diagnosis."""
    with Server(name, options=load.options) as server, load.load(server), counting(server) as counted:
        result = diagnose(server.pid, seconds=seconds)
    record = result.record
    return {
        "load": load.name,
        "server": name,
        "version": record["server"]["version"],
        "findings": {finding["name"]: finding for finding in record["findings"]},
        "nothing_wrong": record["nothing_wrong"],
        "counted": asdict(counted),
    }


def false_alarms(line: Line) -> list[str]:
    """Return the findings that the counts do not confirm; add ``no answer`` if `diagnose` gave no verdict."""
    counted = Counted(**line["counted"])
    right = BY_NAME[line["load"]].right
    wrong = [name for name in line["findings"] if name not in right or not TRUTHS[name].holds(counted)]
    silent = not line["findings"] and not line["nothing_wrong"]
    return [*wrong, *(["no answer"] if silent else [])]


def keep(line: Line) -> None:
    """Append a result to ``FILE``."""
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def results() -> list[Line]:
    """Return the last result of each load on each server."""
    if not FILE.exists():
        return []
    lines = (json.loads(text) for text in FILE.read_text().splitlines())
    return list({(line["load"], line["server"]): line for line in lines}.values())


def _shown(line: Line, alarms: list[str]) -> str:
    if not alarms:
        return ""
    details = (json.dumps(line["findings"].get(name)) for name in alarms)
    return f"\n   FALSE ALARM {', '.join(alarms)}: {line['counted']}\n   " + "\n   ".join(details)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="incidents.healthy", description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help="default: all")
    parser.add_argument(
        "--server", action="append", metavar="NAME", help="may be repeated; default: all three"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of diagnose ({SECONDS:g})")
    options = parser.parse_args()
    if unknown := [name for name in options.loads if name not in BY_NAME]:
        parser.error(f"no such load: {', '.join(unknown)}; the loads are: {', '.join(BY_NAME)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
