"""``python -m bench``: run benchmarks, print their tables, and store all values.

``make bench`` runs everything in full. Progress goes to standard error, tables to standard output.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from bench import (
    agent,
    crowd,
    diagnose,
    fleet,
    gap,
    host,
    many,
    methods,
    overhead,
    probes,
    profile,
    sessions,
    speed,
    startup,
    statements,
    toggle,
)
from bench.helper_process import HelperError
from bench.scene import say
from bench.settings import PROBE_LOADS, Settings, quick
from innoscope.probes.catalog import default_catalog
from servers import ADDED, NAMES, ServerError
from workloads import WorkloadError

_BENCHES = {
    "startup": startup,
    "speed": speed,
    "methods": methods,
    "gap": gap,
    "overhead": overhead,
    "probes": probes,
    "diagnose": diagnose,
    "agent": agent,
    "sessions": sessions,
    "toggle": toggle,
    "profile": profile,
    "fleet": fleet,
    "many": many,
    "crowd": crowd,
    "statements": statements,
}
_JSON = Path("build/bench.json")

#: Settings whose command-line option has a different name.
_OWN_OPTIONS = {
    "servers": ("--server", (*NAMES, *ADDED)),
    "probe_loads": ("--probe-load", PROBE_LOADS),
    "families": ("--family", tuple(default_catalog().families)),
}


def main() -> int:
    """Run the chosen benchmarks. Return exit status 1 after an error, or if a stated limit is exceeded."""
    signal.signal(signal.SIGTERM, _interrupt)
    options = _parser().parse_args()
    try:
        if options.reprint:
            _reprint(options.reprint)
            return 0
        exceeded = _run(options.names or list(_BENCHES), _settings(options), options.json)
    except (HelperError, ServerError, WorkloadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for message in exceeded:
        print(f"bench: {message}", file=sys.stderr)
    return 1 if exceeded else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=(*_BENCHES, []), metavar="NAME", help=", ".join(_BENCHES))
    parser.add_argument("--quick", action="store_true", help="small and short: to try it, not for figures")
    parser.add_argument("--json", type=Path, default=_JSON, metavar="FILE", help=f"all values ({_JSON})")
    parser.add_argument("--reprint", type=Path, metavar="FILE", help="only print the tables of such a file")
    for name, (option, choices) in _OWN_OPTIONS.items():
        what = f"{', '.join(choices)}; may be repeated"
        parser.add_argument(option, dest=name, action="append", choices=choices, metavar="NAME", help=what)
    for field in fields(Settings):
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(option, action="store_true", default=None, help="off by default")
        elif field.name not in _OWN_OPTIONS:
            kind = type(field.default)
            parser.add_argument(option, type=kind, metavar="N", help=f"full: {field.default}")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    settings = quick() if options.quick else Settings()
    given: dict[str, Any] = {
        field.name: getattr(options, field.name)
        for field in fields(Settings)
        if getattr(options, field.name, None) is not None
    }
    given |= {name: tuple(given[name]) for name in _OWN_OPTIONS if name in given}
    return replace(settings, **given)


def _run(names: list[str], settings: Settings, file: Path) -> list[str]:
    """Run the benchmarks one after another; store and print the results of each, even if a later one fails.

    Return a message for each limit that is exceeded.
    """
    facts = host.facts()
    document: dict[str, Any] = {"schema": 1, "host": facts, "settings": asdict(settings), "results": {}}
    print(host.heading(facts), flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        results = document["results"][name] = {}
        try:
            for server in settings.servers:
                results[server] = _BENCHES[name].run(server, settings)
                file.write_text(json.dumps(document, indent=1) + "\n")
        finally:
            if results:
                print(f"\n## {name}\n\n{_BENCHES[name].report(results)}", flush=True)
    say(f"all values are in {file}")
    return exceeded(document["results"])


def exceeded(results: dict[str, Any]) -> list[str]:
    """Return a message for each startup or memory limit that is exceeded."""
    return [
        *startup.exceeded(results.get("startup", {})),
        *many.exceeded(results.get("many", {})),
        *many.exceeded(results.get("crowd", {})),
    ]


def _reprint(file: Path) -> None:
    """Print the tables of a stored run."""
    document = json.loads(file.read_text())
    print(host.heading(document["host"]))
    for name, results in document["results"].items():
        print(f"\n## {name}\n\n{_BENCHES[name].report(results)}")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
