"""Test that no literal from a statement is in the agent's memory, files, pages, pushes or logs.

The agent runs with its unit's environment, which makes malloc overwrite freed memory. Otherwise, freed memory
could still contain literals.
"""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from otlp_receiver import OtlpReceiver
from receiver import Receiver
from safety.agenting import Running
from safety.planted_statements import DATABASE, DIGESTS, SECRETS, busy, leaks
from safety.sensing import Sensing
from safety.units import Unit
from scale import few
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60
NAME = "under%20test"
#: Minimum number of secrets that the process list shows. While CALL runs, the list shows the inner
#: statement, and MySQL 8.0 masks passwords.
SHOWN = len(SECRETS) - 3
PAGES = (
    "/",
    "/metrics",
    "/api/status",
    "/api/probes",
    "/api/incidents",
    f"/api/history?server={NAME}",
    f"/api/flame?server={NAME}",
    f"/api/findings?server={NAME}&from=-5m&to=now",
    f"/api/sessions?server={NAME}",
    *(f"/api/findings?server={NAME}&format={form}" for form in ("json", "text")),
    *(
        f"/api/stacks?server={NAME}&format={form}"
        for form in ("text", "tree", "folded", "json", "speedscope", "pprof", "html")
    ),
)
SERVERS = few(
    ("mysql-5.6.24", "mysql-8.0.31", "mariadb-10.11"),
    "mysql-8.0.31",
    reason="the server on which prepared statements contain their values",
)


@pytest.mark.parametrize("name", SERVERS)
def test_agent_has_no_literals(name: str, folder: Path) -> None:
    found: dict[str, set[str]] = {}
    environment = dict(one.split("=", 1) for one in Unit.named("agent").settings["Environment"])
    with ExitStack() as stack:
        server = stack.enter_context(Server(name))
        receiver = stack.enter_context(Receiver())
        otlp = stack.enter_context(OtlpReceiver())
        sensing = stack.enter_context(Sensing("--no-probes", only=[server]))
        options = (
            f"[push]\nurl = '{receiver.url}'\nkind = 'pyroscope'\ninterval_seconds = 10",
            f"[otlp]\nurl = '{otlp.url}'\ninterval_seconds = 10\nprofiles = true",
            "[stacks]\npoll_seconds = 1",
            "[watch]\ntriggers = ['threads.row_lock>=5']\nfor_seconds = 0\nseconds = 2\nbefore_seconds = 2",
            f"directory = '{folder}/incidents'",
        )
        agent = stack.enter_context(
            Running(server, sensor=sensing.path, options=options, environment=environment)
        )
        agent.until(lambda scrape: scrape.value("statements_up") == 1, PATIENCE_S)
        with busy(server):
            agent.until(lambda scrape: scrape.value("incidents_total") == 1, PATIENCE_S)
            receiver.until(lambda: len(receiver.received) >= 1, PATIENCE_S)
            otlp.until(lambda: all(otlp.signals.values()), PATIENCE_S)
            for page in PAGES:
                status, body = agent.get(page)
                assert status == 200, (page, body)
                found[page] = leaks(body)
            until(lambda: len(json.loads(agent.get(f"/api/sessions?server={NAME}")[1])["digests"]) >= DIGESTS)
            found |= {
                f"memory of the agent: {mapping}": seen for mapping, seen in _lasting(agent.pid).items()
            }
            shown = leaks(str(server.sql("SHOW FULL PROCESSLIST")).encode())
            agent.terminate()
            found |= {
                "log of the agent": leaks(agent.log.encode()),
                "log of the sensor": leaks(sensing.log.encode()),
            }
        for one in receiver.received:
            found["push"] = found.get("push", set()) | leaks(_unzipped(one.raw)) | leaks(str(one).encode())
        found |= {f"OTLP: {signal}": leaks(str(sent).encode()) for signal, sent in otlp.signals.items()}
        assert otlp.complaints == []
        for path in [*agent.history.rglob("*"), *(folder / "incidents").rglob("*")]:
            if path.is_file():
                found[path.name] = found.get(path.name, set()) | leaks(_unzipped(path.read_bytes()))
        values, digests = _parquet(agent.history)
    found["values in Parquet"] = leaks(values)
    control = set().union(*(seen for _, seen in _in_memory(os.getpid())))
    print(f"{name}: {len(SECRETS)} secrets, {digests} digests in the history")
    print(f"the process list shows all but {sorted({*SECRETS} - shown)}")
    print(f"searched: memory of the agent, {', '.join(sorted(found))}")
    assert control == {*SECRETS}, "the search does not find the secrets in this process"
    assert len(shown) >= SHOWN
    assert digests >= DIGESTS
    assert {place: seen for place, seen in found.items() if seen} == {}


def _lasting(pid: int) -> dict[str, set[str]]:
    """Search repeatedly, because a query may be in progress; return the result with the fewest mappings."""
    searches = []
    for _ in range(5):
        searches.append(dict(_in_memory(pid)))
        time.sleep(0.3)
    return min(searches, key=len)


def _in_memory(pid: int) -> Iterator[tuple[str, set[str]]]:
    """Search all readable mappings of a process. Yield those that contain secrets."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            start, end = (int(one, 16) for one in span.split("-"))
            if not mode.startswith("r") or start >= 1 << 63:
                continue
            with suppress(OSError):  # [vvar]
                memory.seek(start)
                if seen := leaks(memory.read(end - start)):
                    yield line, seen


def _unzipped(data: bytes) -> bytes:
    """Return the data, and also their content if they are compressed."""
    with suppress(OSError, EOFError, zlib.error):
        return data + gzip.decompress(data)
    return data


def _parquet(history: Path) -> tuple[bytes, int]:
    """Return all values of all tables as text, and the number of the statements' digests."""
    tables = {path.name for path in history.rglob("*.parquet")}
    assert tables == {"samples.parquet", "snapshots.parquet", "stacks.parquet", "digests.parquet"}
    database = duckdb.connect()
    rows = [database.execute(f"SELECT * FROM '{history}/*/{table}'").fetchall() for table in sorted(tables)]
    counted = (
        f"SELECT COUNT(DISTINCT digest) FROM '{history}/*/samples.parquet' WHERE \"schema\" = '{DATABASE}'"
    )
    [[number]] = database.execute(counted).fetchall()
    return json.dumps(rows, default=str).encode(), number
