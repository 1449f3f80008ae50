"""Test who can access which HTTP route, and that malformed or ambiguous requests are rejected."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from certificates import self_signed
from innoscope.daemon.agent import config
from innoscope.daemon.agent.main import Agent
from safety.agenting import Running
from safety.command import DEADLINE_S
from safety.hour_sensor import MARK, HourSensor
from safety.netspace import HERE, HERE_6, THERE, Host
from safety.web_flood import exchange, get, memory_limit, peak
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Prefixes of paths that name files. No path of OUTSIDE exists below these.
PREFIXES = ("/runbooks/", "/page/", "/static/", "/assets/")
OUTSIDE = (
    "../../../../../../etc/passwd", "..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "..%252f..%252f..%252fetc%252fpasswd",
    "..%c0%af..%c0%af..%c0%afetc/passwd", "....//....//....//etc/passwd", "..\\..\\..\\etc\\passwd",
    "..%5c..%5c..%5cetc%5cpasswd", "/etc/passwd", "//etc/passwd", "%2fetc%2fpasswd", "..;/..;/etc/passwd",
    "etc/passwd%00.md", "../agent.toml", "..", ".", "%2e",
)  # fmt: skip
SECRET = "not-for-them"  # noqa: S105
#: Invalid times: malformed, not a number, or out of range.
TIMES = (
    "nan", "-nanh", "inf", "-inf", "1e308", "-1e308h", "1" + "0" * 308, "9" * 400, "-" + "9" * 400 + "h",
    "-1e5000s", "0001-01-01", "9999-12-31T23:59:59Z", "-١٥m", "١٢٣٤", "-0s", "--1h", "-1d", "-h", "0x10",
    "'\"<script>", "%00", "%f0%9f%92%a9", "now" * 500,
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(scope="module")
def sensor(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.getbasetemp() / "hour.sock"
    with HourSensor(path, server):
        yield path


@contextmanager
def running(server: Server, sensor: Path, here: Host, *arguments: object) -> Iterator[Running]:
    """Start an agent. Afterwards check that it logged no traceback and stayed within its memory limit."""
    options = [f'user = "{SECRET}"', "[stacks]", "poll_seconds = 1"]
    with Running(server, *arguments, sensor=sensor, under=here.prefix, options=options) as agent:
        pid = agent.pid
        yield agent
        assert agent.pid == pid
        assert "Traceback" not in agent.log, agent.log
        assert "\\u0000" not in agent.log
        assert len(agent.log) < 100_000
        assert peak(pid) < memory_limit()


@pytest.fixture(scope="module")
def local(server: Server, sensor: Path, here: Host) -> Iterator[Running]:
    """Start an agent on loopback, which trusts clients on its host, and wait for its stacks."""
    with running(server, sensor, here) as agent:
        with here.entered():
            until(lambda: MARK.encode() in agent.get("/api/stacks?format=folded")[1], lambda: agent.log)
        yield agent


@pytest.fixture(scope="module")
def reachable(server: Server, sensor: Path, here: Host) -> Iterator[Running]:
    """Start an agent that listens on all addresses without a password."""
    with running(server, sensor, here, "--web.listen-address", ":0") as agent:
        yield agent


@pytest.fixture(scope="module")
def routes() -> tuple[str, ...]:
    """Return all routes of an agent."""
    agent = Agent(config.Config(web=config.Web(listen_address="127.0.0.1:0")))
    try:
        return tuple(agent.web.routes)
    finally:
        agent.web.stop()


def statuses(raw: bytes) -> list[int]:
    """Return the status of each response in the received bytes."""
    return [int(part[9:12]) for part in raw.split(b"HTTP/1.1 ")[1:] for part in [b"HTTP/1.1 " + part]]


DISGUISES: dict[str, dict[str, str]] = {
    "as it is": {},
    "Host": {"Host": "localhost"},
    "Host with a port": {"Host": "127.0.0.1:9977"},
    "X-Forwarded-For": {"Host": "localhost", "X_Forwarded_For": "127.0.0.1", "X_Real_IP": "127.0.0.1"},
    "Forwarded": {"Host": "localhost", "Forwarded": "for=127.0.0.1;host=localhost"},
    "user": {"Authorization": "Basic cm9vdDo=", "Host": "localhost"},
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_other_hosts_get_no_stacks(
    disguise: str, reachable: Running, there: Host, here: Host, routes: tuple[str, ...]
) -> None:
    """Request all pages with various headers, over IPv4 and IPv6, from another host and the agent's own."""
    assert {"/api/stacks", "/api/probes"} <= set(routes)
    paths = [path for path in routes if not path.startswith(PREFIXES)]
    for host, address in ((there, HERE), (there, HERE_6), (here, HERE), (here, "127.0.0.1"), (here, "::1")):
        for path in paths:
            status, body, _ = get(host, reachable.port, path, address=address, **DISGUISES[disguise])
            assert status in (200, 400, 403, 404, 503), (path, status)
            assert MARK.encode() not in body, path
        for path in (
            "/api/stacks",
            "/api/sessions",
            "/api/findings",
            "/api/incidents",
            "/api/incidents?file=x",
        ):
            assert get(host, reachable.port, path, address=address, **DISGUISES[disguise])[0] == 403, path


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "localhost:9977"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "rebound.example.net:9977"}, 403),
        ({"Host": "127.0.0.1.example.net"}, 403),
        ({"Host": "localhost.example.net"}, 403),
        ({"Host": "0.0.0.0:9977"}, 403),
        ({"Host": "[::ffff:10.77.0.1]"}, 403),
        ({"Host": "2130706433"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "a@localhost"}, 400),
        ({"Host": "rebound.example.net\\@localhost"}, 400),
        ({"Host": "localhost", "X-Forwarded-For": THERE}, 403),
        ({"Host": "localhost", "Via": "1.1 proxy"}, 403),
    ],
    ids=str,
)
def test_foreign_host_names_of_loopback_get_no_stacks(
    headers: dict[str, str], expected: int, local: Running, here: Host
) -> None:
    """Check that the Host header must name this host to get stacks, as a defense against DNS rebinding."""
    status, body, _ = get(here, local.port, "/api/stacks?format=folded", address="127.0.0.1", **headers)

    assert status == expected, body[:200]
    assert (MARK.encode() in body) == (expected == 200)


def test_no_other_file_of_the_host_is_served(
    local: Running, reachable: Running, here: Host, there: Host, routes: tuple[str, ...]
) -> None:
    """Try paths below every route, and below the prefixes that name files."""
    folders = {"/", *PREFIXES, *(f"{path.rstrip('/')}/" for path in routes)}
    paths = [folder + way for folder in sorted(folders) for way in OUTSIDE]
    for host, agent, address, some in (
        (here, local, "127.0.0.1", paths), (there, reachable, HERE, [f"/{way}" for way in OUTSIDE]),
    ):  # fmt: skip
        for path, answer in zip(some, responses(host, agent.port, address, some), strict=True):
            assert b"root:" not in answer, path
            assert SECRET.encode() not in answer, path
            assert statuses(answer) == [404], (path, answer[:300])


def responses(host: Host, port: int, address: str, paths: list[str]) -> list[bytes]:
    """Request each path and return the responses, over as few connections as possible."""
    found: list[bytes] = []
    wire: socket.socket | None = None
    with host.entered():
        for path in paths:
            if wire is None:
                wire = socket.create_connection((address, port), DEADLINE_S)
            wire.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode("latin-1"))
            answer = wire.recv(1 << 16)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += wire.recv(1 << 16)
            found.append(head + b"\r\n\r\n" + body)
            if b"\r\nConnection: close" in head:
                wire.close()
                wire = None
    if wire is not None:
        wire.close()
    return found


def test_other_methods_are_refused(reachable: Running, there: Host, routes: tuple[str, ...]) -> None:
    for method in (
        "POST",
        "PUT",
        "DELETE",
        "PATCH",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "get",
        "G" * 5000,
    ):
        for path in routes if method == "POST" else ("/", "/api/stacks"):
            status, _, headers = get(there, reachable.port, path, method=method)
            assert status in (400, 405), (method, path)
            assert status == 400 or headers["Allow"] == "GET, HEAD"
    assert get(there, reachable.port, "/metrics", method="HEAD")[:2] == (200, b"")


HEAD = b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n"
NEXT = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "shape",
    [
        HEAD + b"Content-Length: 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
        HEAD + b"Transfer_Encoding: chunked\r\nContent-Length: 44\r\n\r\n",
        HEAD + b"Content-Length: 44\r\n\r\n",
        HEAD + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
        HEAD + b"Content-Length: 4\xb2\r\n\r\n",
        HEAD + b"broken line\r\nContent-Length: 44\r\n\r\n",
        HEAD + b"X: a\r\n b: c\r\n\r\n",
        HEAD + b"X: a\n\r\n",
        HEAD[:-2] + b"\n\n",
        HEAD + b"X: \x00\r\n\r\n",
        HEAD + b"Host: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://localhost/api/stacks HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\r\n",
        b"GET / HTTP/3.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n",
        b"\x00" * 2000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(505),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        HEAD + b"X: y\r\n" * 5000 + b"\r\n",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=lambda shape: repr(shape[:60])[2:-1].removeprefix("GET /-/healthy HTTP/1.1\\r\\nHost: a\\r\\n"),
)
def test_an_ambiguous_request_is_refused(shape: bytes, reachable: Running, there: Host) -> None:
    """Check that the agent sends at most one short error, and does not respond to the request after it."""
    answer = exchange(there, reachable.port, shape + NEXT)

    assert len(statuses(answer)) <= 1, answer
    assert b"innoscope_" not in answer
    assert len(answer) < 600
    if answer:  # the kernel discards the response if request data is still unread
        assert statuses(answer)[0] in (400, 405, 414, 431), answer
        assert b"Connection: close" in answer
        assert b"\r\nContent-Type: text/plain" in answer


def test_invalid_parameters_are_refused(local: Running, here: Host, routes: tuple[str, ...]) -> None:
    """Check that invalid times, formats and names get an error message and do not disturb the agent."""
    queries = [f"{name}={value}" for name in ("from", "to", "since") for value in TIMES]
    queries += [
        f"{name}={value}" for name in ("server", "format", "by") for value in ("", "../x", "%00", "x" * 5000)
    ]
    queries += [
        "&".join(f"p{number}=" for number in range(500)),
        "&" * 900,
        "=" * 900,
        "a;b",
        "%",
        "%zz",
        "?" * 500,
    ]
    paths = [
        f"{path}?from=-5s&format=folded&{to_ascii(query)}"
        for path in routes if path.startswith("/api/") for query in queries
    ]  # fmt: skip
    for path, answer in zip(paths, responses(here, local.port, "127.0.0.1", paths), strict=True):
        head, _, body = answer.partition(b"\r\n\r\n")
        (status,) = statuses(head)
        assert status in (200, 400, 404, 503), (path[:120], answer[:300])
        if b"\r\nContent-Type: application/json" in head:
            json.loads(body, parse_constant=pytest.fail)
        elif status != 200:
            assert len(body) < 2000


def to_ascii(query: str) -> str:
    return "".join(
        sign if sign.isascii() and sign != " " else f"%{byte:02x}" for sign in query for byte in sign.encode()
    )


def test_unknown_formats_and_timeouts_are_ignored(reachable: Running, there: Host) -> None:
    for accept in (
        "application/openmetrics-text; version=x",
        "text/plain; version=1.0.0; escaping=\xff",
        "application/openmetrics-text;version=" + "9" * 5000,
        "," * 5000,
        "*/*;q=nan",
    ):
        status, body, _ = get(there, reachable.port, "/metrics", Accept=accept)
        assert (status, b"innoscope_" in body) == (200, True), accept[:60]
    for patience in ("nan", "-1", "1e308", "", "0x1"):
        assert get(there, reachable.port, "/metrics", X_Prometheus_Scrape_Timeout_Seconds=patience)[0] == 200


def test_pages_forbid_access_by_other_origins(local: Running, here: Host, routes: tuple[str, ...]) -> None:
    for path in routes:
        _, body, headers = get(here, local.port, path, address="127.0.0.1", Host="localhost")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin", path
        assert not [name for name in headers if name.lower().startswith("access-control-")]
        assert headers["Server"].strip() == "innoscope"
        assert b"<html" not in body or headers["Content-Type"].startswith("text/html")


def test_the_content_security_policy_is_strict(local: Running, here: Host) -> None:
    """Check that the policy allows no inline scripts, no content from other origins and no embedding."""
    _, body, headers = get(here, local.port, "/", address="127.0.0.1", Host="localhost")
    if b"<script" not in body:
        return
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-" not in policy.replace("style-src 'unsafe-inline'", "")


def test_tls_renegotiation_and_plain_http_are_refused(
    server: Server, sensor: Path, here: Host, there: Host, tmp_path: Path
) -> None:
    self_signed(tmp_path)
    file = tmp_path / "web.yaml"
    file.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    with running(server, sensor, here, "--web.listen-address", ":0", "--web.config.file", file) as agent:
        for raw in (NEXT, b"\x00" * 5000, b"\x16\x03\x01\xff\xff" + b"\x01" * 5000, b""):
            assert b"HTTP/" not in exchange(there, agent.port, raw)
        command = [
            "openssl",
            "s_client",
            "-connect",
            f"{HERE}:{agent.port}",
            "-tls1_2",
            "-legacy_renegotiation",
        ]
        done = subprocess.run(
            [*there.prefix, *command], input=b"R\n", capture_output=True, timeout=DEADLINE_S, check=False
        )
        assert b"RENEGOTIATING" in done.stderr
        assert b"no renegotiation" in done.stderr
