"""``python -m servers``: fetch, list and start test servers from the command line."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from typing import NoReturn

from servers import NAMES, SERVERS, Server, ServerError, fetch

#: Seconds between checks that the server is still running.
_POLL = 0.5


def main() -> int:
    """Run one command; print an error as one message and return exit status 1."""
    options = _parser().parse_args()
    try:
        match options.command:
            case "fetch":
                for name in options.names or NAMES:
                    print(f"{name}: {fetch(name).folder}")
            case "list":
                for spec in SERVERS.values():
                    print(f"{spec.name:<16} {spec.notes}")
            case "start":
                return _start(options)
    except ServerError as error:
        print(f"servers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    from workloads import WORKLOADS

    parser = argparse.ArgumentParser(prog="servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the servers")
    fetching = commands.add_parser("fetch", help="download servers into the cache")
    fetching.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    start = commands.add_parser("start", help="start one; Ctrl-C stops it and leaves nothing")
    start.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    start.add_argument("--workload", choices=WORKLOADS, help="keep it busy or blocked in a known way")
    start.add_argument(
        "--connections", type=int, default=10, metavar="N", help="clients of the workload (10)"
    )
    start.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of mysqld")
    return parser


def _start(options: argparse.Namespace) -> int:
    """Start the server, print how to connect, and wait until it exits or is interrupted (SIGTERM, Ctrl-C)."""
    from workloads import WORKLOADS

    signal.signal(signal.SIGTERM, _interrupt)
    kind = WORKLOADS[options.workload] if options.workload else None
    wanted = [*(kind.server_options if kind else ()), *(f"--{option}" for option in options.set)]
    with Server(options.name, options=wanted) as server, contextlib.ExitStack() as stack:
        print(f"{server.name} {server.version}: pid {server.pid}, port {server.port}")
        print(f"  socket  {server.socket}")
        print(f"  log     {server.error_log}")
        print(f"  connect mysql --no-defaults -uroot -S {server.socket}", flush=True)
        if kind:
            workload = stack.enter_context(kind(server, options.connections))
            print(f"  load    {workload.describe}; expected wait class: {workload.expected}", flush=True)
        while server.running:
            time.sleep(_POLL)
        print(f"servers: {server.name} ended by itself, see {server.error_log}", file=sys.stderr)
        return 1


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
