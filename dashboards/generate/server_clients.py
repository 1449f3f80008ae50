"""Define the panels about transactions and clients of the dashboard for one server."""

from __future__ import annotations

from typing import Final

from generate.model import Panel, Query, read, run
from generate.queries import level, rate

CLIENTS: Final = (
    Panel(
        "Oldest transaction", "timeseries", "s",
        (Query(level("oldest_transaction_age_seconds", aggregate="max"), "age"),),
        "Age of the oldest transaction.",
        "Hours: it keeps locks, and purge cannot remove undo logs.",
        (run("innoscope diagnose"), run("innoscope stacks --queries")),
        width=8,
    ),
    Panel(
        "Failed connections", "timeseries", "ops",
        (Query(rate("aborted_connects"), "failed"),),
        "Attempts to connect that failed: a wrong password, no free connection, or a client that gave up.",
        "A sudden rise: a deployment with wrong credentials, or `max_connections` is reached.",
        (run("innoscope doctor"), read("troubleshooting.md")),
        width=8,
    ),
    Panel(
        "Read-only", "timeseries", "short",
        (Query(level("read_only", aggregate="max"), "read_only"),),
        "1 while clients without special privileges cannot write.",
        "0 on a replica: clients can change its data. 1 on a source: all writes fail.",
        (run("innoscope diagnose"), read("mysqld-exporter.md")),
        width=8, most=1,
    ),
)  # fmt: skip
