"""Test that scrapes succeed and the agent stays within its memory limit while bad clients attack."""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import bcrypt
import pytest

from certificates import self_signed
from safety.agenting import Running
from safety.hour_sensor import HourSensor
from safety.netspace import THERE, Host
from safety.sensing import Sensing
from safety.units import Unit, command_line, confined, sensor_folder, temporary_accounts
from safety.web_flood import flood, get, memory_limit, peak
from safety.well import assert_well
from scale import long
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from safety.units import Accounts

#: Maximum seconds of a scrape during a flood on the same machine. Prometheus waits for 10 s.
SCRAPE_S = 5.0
SECONDS = 2
ANOTHER = long("another variant of the same attack is in make test")
ONE = ("10.78.0.1",)
MANY = tuple(f"10.78.0.{number}" for number in range(1, 41))
BOB = "Basic Ym9iOnNlY3JldA=="
KNOWN = {"Authorization": "Basic YW5uOnNlY3JldA=="}  # ann:secret
#: The bcrypt cost that the documentation of exporters recommends.
COST = 10


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server
        assert_well(server)


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    with temporary_accounts() as accounts:
        yield accounts


@pytest.fixture(scope="module")
def place(accounts: Accounts) -> Iterator[Path]:
    with sensor_folder(accounts) as path:
        yield path


def checked(agent: Running) -> Iterator[Running]:
    """Yield the agent. Then check that it runs, logged no traceback and stayed within its limit."""
    pid = agent.pid
    yield agent
    assert agent.process is not None
    assert agent.process.poll() is None, agent.log
    assert agent.pid == pid
    assert "Traceback" not in agent.log, agent.log
    assert peak(pid) < memory_limit()


@pytest.fixture(scope="module")
def agent(server: Server, accounts: Accounts, place: Path, here: Host) -> Iterator[Running]:
    """Start the agent and the sensor with their units' restrictions. The agent listens on all addresses."""
    sensor, own = Unit.named("sensor"), Unit.named("agent")
    beside = command_line(confined(sensor, accounts, writable=place))
    under = [*here.prefix, *command_line(confined(own, accounts, writable=place))]
    with (
        Sensing(
            *sensor.command[1:], "--no-probes", only=[server], under=beside, path=place / "sensor.sock"
        ) as sensing,
        Running(
            server, "--web.listen-address", ":0", sensor=sensing.path, options=['user = "root"'], under=under
        ) as agent,
    ):
        yield from checked(agent)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Return the TLS context of a client that accepts any certificate."""
    self_signed(tmp_path_factory.getbasetemp())
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.fixture(scope="module")
def guarded(
    server: Server, here: Host, tls: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Start an agent with TLS and passwords. The fixture ``tls`` has created the certificate."""
    assert tls
    file = tmp_path_factory.getbasetemp() / "web.yaml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(COST)).decode()
    file.write_text(
        "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"
        f'basic_auth_users: {{ann: "{hashed}"}}\n'
    )
    with Running(server, "--web.listen-address", ":0", "--web.config.file", file, under=here.prefix) as agent:
        yield from checked(agent)


@pytest.mark.parametrize(
    ("kind", "sources", "from_here"),
    [
        ("silent", ONE, False),
        pytest.param("silent", MANY, False, marks=ANOTHER),
        pytest.param("silent", (THERE,), False, marks=ANOTHER),  # the flood comes from Prometheus's address
        pytest.param("dribble", MANY, False, marks=ANOTHER),
        pytest.param("unread", MANY, False, marks=ANOTHER),
        ("metrics", MANY, True),
    ],
    ids=lambda value: f"from-{len(value)}" if isinstance(value, tuple) else str(value),
)
def test_a_thousand_clients_delay_no_scrape(
    kind: str, sources: tuple[str, ...], from_here: bool, agent: Running, here: Host, there: Host
) -> None:
    """Flood the agent during scrapes. If ``from_here`` is set, the scrapes come from the agent's host."""
    with flood(
        agent.pid, agent.port, there, kind, seconds=SECONDS, count=1000, sources=sources,
        scraped_from=here if from_here else None,
    ) as result:  # fmt: skip
        pass

    assert result.outcomes["connected"] > 900, result
    assert not result.failed, result
    assert max(result.seconds) < SCRAPE_S, result
    assert result.peak < memory_limit(), result


@pytest.mark.parametrize("kind", [pytest.param("handshake", marks=ANOTHER), "tls"])
def test_tls_handshakes_delay_no_scrape(
    kind: str, guarded: Running, there: Host, tls: ssl.SSLContext
) -> None:
    """Flood the agent with slow handshakes, and with complete handshakes without a pause."""
    count = {"handshake": 1000, "tls": 50}[kind]
    with flood(
        guarded.pid, guarded.port, there, kind, seconds=SECONDS, count=count,
        sources=MANY, headers=KNOWN, tls=tls,
    ) as result:  # fmt: skip
        pass

    assert not result.failed, result
    assert max(result.seconds) < SCRAPE_S, result
    assert result.peak < memory_limit(), result


@pytest.fixture(scope="module")
def passworded(
    server: Server, here: Host, there: Host, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Start an agent with passwords, and log in once as ann."""
    file = tmp_path_factory.getbasetemp() / "users.yaml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(COST)).decode()
    file.write_text(f'basic_auth_users: {{ann: "{hashed}", bob: "{hashed}"}}\n')
    with Running(server, "--web.listen-address", ":0", "--web.config.file", file, under=here.prefix) as agent:
        assert get(there, agent.port, "/metrics", **KNOWN)[0] == 200
        yield from checked(agent)


@pytest.mark.parametrize(
    "sources", [pytest.param(ONE, id="from-1"), pytest.param(MANY, id="from-40", marks=ANOTHER)]
)
def test_guessed_passwords_delay_no_scrape(
    sources: tuple[str, ...], passworded: Running, there: Host
) -> None:
    """Check that known users are not delayed, and that few guesses are verified, at little cost."""
    before = cpu_s(passworded.pid)
    with flood(
        passworded.pid, passworded.port, there, "guess", seconds=2 * SECONDS,
        count=60, sources=sources, headers=KNOWN,
    ) as result:  # fmt: skip
        newcomer = get(there, passworded.port, "/metrics", Authorization=BOB)[0] if sources == ONE else 200
    used = cpu_s(passworded.pid) - before

    assert newcomer == 200
    assert not result.failed, result
    assert max(result.seconds) < SCRAPE_S, result
    assert 0 < result.outcomes["401"] < 20, result
    assert result.outcomes["429 retry-after"] > result.outcomes["401"], result
    assert used < 0.6 * result.outcomes["seconds"], f"{used} s of CPU"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def hour(server: Server, here: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Start an agent on loopback with the maximum number of stacks."""
    path = tmp_path_factory.getbasetemp() / "hour.sock"
    with (
        HourSensor(path, server),
        Running(server, sensor=path, under=here.prefix, options=["[stacks]", "poll_seconds = 1"]) as agent,
    ):
        with here.entered():
            until_ready = b"marked_function_1999_"
            deadline = time.monotonic() + 20
            while until_ready not in agent.get("/api/stacks?format=folded")[1]:
                assert time.monotonic() < deadline, agent.log
        yield from checked(agent)


@long("a thousand scrapes at once are in make test")
def test_concurrent_requests_of_the_most_expensive_page_are_limited(hour: Running, here: Host) -> None:
    """Check that some requests get the page, and the others get 503 with Retry-After."""
    with flood(
        hour.pid, hour.port, here, "stacks", seconds=20, count=50,
        sources=["127.0.0.1"], address="127.0.0.1",
    ) as result:  # fmt: skip
        pass

    assert result.outcomes["200"] >= 1, result
    assert result.outcomes["200"] + result.outcomes["503 retry-after"] == 50, result
    assert not result.failed, result
    assert max(result.seconds) < SCRAPE_S, result
    assert result.peak < memory_limit(), result
