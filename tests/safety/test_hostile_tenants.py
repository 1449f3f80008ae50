"""Test that many tenants, each with several hostile servers, do not disturb another user's real server."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.target import allowed_users
from safety.hostile_elf import FILES
from safety.sensing import Sensing, of_pid
from safety.stopwatch import Stopwatch, undisturbed
from safety.test_hostile_crowd import compile_mapping, running
from scale import count, few
from servers import Server
from servers.debian import MYSQL_UID
from waiting import until
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.daemon.protocol.messages import Reply

#: The uid of the first tenant. No tenant's uid has an account.
FIRST_UID: Final = 54_400
PROCESSES: Final = 3
ANSWER_S: Final = 1.0
SENSOR_BYTES: Final = 256 << 20
COLLECTIONS: Final = count(quick=5, full=20)
_COLLECTORS: Final = ("process", "memory", "waits")


def _rule(folder: Path, tenants: int) -> Path:
    """Allow the users of all tenants, in addition to the users of the tests' servers."""
    rule = folder / "servers.toml"
    users = f"['mysql', 'mariadb', {MYSQL_UID}, '{FIRST_UID}-{FIRST_UID + tenants - 1}']"
    rule.write_text(f"users = {users}\nremapped_uids = [0]\n")
    rule.chmod(0o644)
    return rule


def _processes(stack: ExitStack, folder: Path, tenants: int) -> Iterator[int]:
    """Start the processes of all tenants; yield their pids. Each maps a hostile file that its user owns."""
    program = compile_mapping(folder)
    contents = [make() for make, _ in FILES.values()]
    for tenant in range(tenants):
        uid = FIRST_UID + tenant
        for number in range(PROCESSES):
            file = folder / f"{tenant}-{number}.so"
            file.write_bytes(contents[(tenant + number) % len(contents)])
            shutil.chown(file, uid, uid)
            yield stack.enter_context(running(program, file, uid=uid))


def missing(reply: Reply, pid: int) -> dict[str, str | None]:
    """Return the collectors of the real server that have no samples, with the reasons."""
    real = of_pid(reply, pid)
    outcomes = {one.collector: one for one in real.outcomes} if real else {}
    return {
        name: outcomes[name].reason if name in outcomes else "absent"
        for name in _COLLECTORS
        if name not in outcomes or not outcomes[name].success
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tenants", few((4, 16), 4, reason="the limits are per tenant"))
def test_many_tenants_do_not_disturb_the_real_server(folder: Path, tenants: int) -> None:
    took: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        stack.enter_context(RowLock(server, 4))
        pids = list(_processes(stack, folder, tenants))
        only = [text for pid in pids for text in ("--only", pid)]
        environment = {allowed_users.VARIABLE: str(_rule(folder, tenants))}
        sensing = stack.enter_context(Sensing("--no-probes", *only, only=[server], environment=environment))

        def collect() -> Reply:
            stopwatch = Stopwatch()
            reply = sensing.client.collect()
            took.append(stopwatch.seconds())
            return reply

        def complete() -> bool:
            reply = collect()
            return not missing(reply, server.pid) and all(of_pid(reply, pid) for pid in pids)

        until(complete, lambda: sensing.log[-4000:], every_s=0.5)
        for _ in range(COLLECTIONS):
            reply = undisturbed(collect)
            assert missing(reply, server.pid) == {}
            time.sleep(1)  # the interval of snapshots
        log = sensing.log
    print(f"{tenants} tenants: slowest reply {max(took):.2f} s, sensor {reply.rss_bytes / 1e6:.0f} MB")
    assert max(took) < ANSWER_S
    assert reply.rss_bytes < SENSOR_BYTES
    assert "Traceback" not in log
