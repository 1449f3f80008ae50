"""Set up tests of the dashboards: two servers under load, an agent, and Prometheus."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import grafana
from incidents import scenes_replica
from innoscope.probes.catalog import default_catalog
from innoscope.toggles import engine
from live.changing import ROOT, Changer
from live.staging import Copy
from prometheus import Prometheus
from receiver import Receiver
from safety.agenting import Running
from safety.sensing import Sensing
from servers import Server
from webhook import Webhook
from workloads import Cpu, Fsync, RowLock, TableScan, UpdateStorm
from workloads.clients import Clients, repeating

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = grafana.FOLDER.parent / "alerts" / "recording.yaml"
#: A MySQL server that provides all metrics except deadlocks, and a MariaDB server that provides deadlocks.
BUSY, OTHER = "mysql-5.6.24", "mariadb-11.4.5"
#: Names of these two servers in the agent's configuration.
BUSY_NAME, OTHER_NAME = "under test", "other"
#: A server on "another host", where no process listens.
DOWN_NAME = "down"
_OPTIONS = (
    "--innodb-buffer-pool-size=16M",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-log-file-size=4M",
    "--innodb-max-dirty-pages-pct=30",
    "--innodb-lru-scan-depth=100",
    "--table-open-cache=8",
    "--server-id=2",
    "--relay-log=relay",
)
#: Maximum seconds until all collectors of both servers succeed. Compiling the probes and reading the debug
#: information are slow.
_PATIENCE_S = 120
#: Seconds between two scrapes in ``acts``, long enough that no scrape is missed on a busy machine.
SLOW_S = 2
#: Duration of each act in seconds.
_ACT_S = 20


class Copying(Copy):
    """The load ``Copy`` with a small table, so that it stops quickly."""

    _ROWS = 1 << 17


@contextmanager
def scene(folder: Path) -> Iterator[Prometheus]:
    """Yield Prometheus while the servers are under load. All users must be able to read ``folder``."""
    with _stage(folder) as (prometheus, busy, other), load(busy, other):
        yield prometheus


@contextmanager
def acts(folder: Path) -> Iterator[tuple[Prometheus, int]]:
    """Run a sequence of loads for the pictures; yield Prometheus and the loads' duration in seconds."""
    with _stage(folder, SLOW_S) as (prometheus, busy, other), ExitStack() as always:
        always.enter_context(Fsync(busy, 2))
        always.enter_context(UpdateStorm(other, 4))
        time.sleep(_ACT_S)
        began = time.monotonic()
        with TableScan(busy, 1), Copying(busy):
            time.sleep(_ACT_S)
            with UpdateStorm(busy, 40), opening(busy, 4):
                time.sleep(_ACT_S)
        with RowLock(busy, 20), opening(busy, 6):
            time.sleep(_ACT_S)
        always.enter_context(Cpu(busy, 2))
        time.sleep(_ACT_S)
        yield prometheus, int(time.monotonic() - began) + _ACT_S


@contextmanager
def _stage(folder: Path, interval_s: int = 1) -> Iterator[tuple[Prometheus, Server, Server]]:
    """Yield Prometheus and both servers, without a load."""
    with ExitStack() as stack:
        busy = stack.enter_context(Server(BUSY, options=_OPTIONS))
        stack.enter_context(scenes_replica.following(busy))
        other = stack.enter_context(Server(OTHER))
        families = [word for name in default_catalog().families for word in ("--family", name)]
        # The budget is all CPUs: if probes exceeded a smaller one, some could be detached for a minute.
        sensing = stack.enter_context(Sensing(*families, "--budget", 1, only=[busy, other]))
        receiver, webhook = stack.enter_context(Receiver()), stack.enter_context(Webhook())
        places = (
            f"[notify]\nurl = '{webhook.url}'\n",
            f"[upload]\nurl = '{webhook.url}'\nkind = 'http'\n",
            f"[otlp]\nurl = '{webhook.url}'\ninterval_seconds = 10\n",
            f"[stacks]\npoll_seconds = 1\n[push]\nurl = '{receiver.url}'\ninterval_seconds = 10\n",
            f"[[server]]\nname = '{OTHER_NAME}'\nsocket = '{other.folder.inside}/s.sock'\n",
            f"[[server]]\nname = '{DOWN_NAME}'\nhost = '127.0.0.2'\nport = 1\n",
            _watch(folder / "incidents"),
        )
        agent = stack.enter_context(Running(busy, sensor=sensing.path, options=places))
        stack.callback(sensing.terminate)  # a killed sensor could not detach its probes itself
        _change(busy, folder)
        prometheus = stack.enter_context(Prometheus(folder, agent.port, interval_s=interval_s, rules=[RULES]))
        _until_known(prometheus)
        yield prometheus, busy, other


def _watch(folder: Path) -> str:
    """Return a configuration that makes the agent capture one incident per server once the server is busy.

    All users may write to the directory, because the agent runs as another user.
    """
    folder.mkdir()
    folder.chmod(0o777)
    rules = "triggers = ['threads_busy>0']\nfor_seconds = 0\nseconds = 1\nbefore_seconds = 0"
    return f"[watch]\n{rules}\ncooldown_seconds = 86400\ndirectory = '{folder}'\n"


@contextmanager
def load(busy: Server, other: Server) -> Iterator[None]:
    """Run loads that change every metric."""
    with (
        TableScan(busy, 1),
        Copying(busy),
        UpdateStorm(busy, 12),
        RowLock(busy, 3),
        Fsync(busy, 2),
        opening(busy, 6),
        UpdateStorm(other, 4),
    ):
        yield


@contextmanager
def opening(server: Server, clients: int) -> Iterator[None]:
    """Run clients that read more tables than the table cache holds, so that tables are opened continually."""
    tables = [f"t{number}" for number in range(20)]
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS opening")
        cursor.execute("CREATE DATABASE opening")
        for table in tables:
            cursor.execute(f"CREATE TABLE opening.{table} (a INT PRIMARY KEY) ENGINE=InnoDB")
    with Clients(server, clients, "opening", repeating([f"SELECT a FROM {table}" for table in tables])):
        yield


def _change(server: Server, folder: Path) -> None:
    """Make a change that expires after 15 minutes, but start no process that undoes it."""
    changer = Changer(server, folder)
    deps = replace(changer.deps, expiry=SimpleNamespace(arm=lambda *_: None, disarm=lambda *_: None))
    plan = engine.plan(changer.target, "io_capacity", "300", account=ROOT, deps=deps)
    engine.apply(changer.target, plan, who="a test", seconds=900, account=ROOT, deps=deps)


def _until_known(prometheus: Prometheus) -> None:
    """Wait until every collector of both servers has succeeded."""
    names = "probes|memory|waits|process|sql|state"
    query = f'sum(innoscope_collector_success{{collector=~"{names}"}})'
    deadline = time.monotonic() + _PATIENCE_S
    while (found := prometheus.value(query)) < 2 * len(names.split("|")):
        assert time.monotonic() < deadline, f"only {found} collectors have succeeded"
        time.sleep(0.5)
