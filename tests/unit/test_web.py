"""The HTTP server authenticates clients and determines their roles; no client can lock out others."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest

from certificates import self_signed
from innoscope.common.errors import BadFile
from innoscope.daemon.http import server as http_server
from innoscope.daemon.http.connections import MAX_CONNECTIONS, Connections, client_of
from innoscope.daemon.http.overload import ExpensiveResponses, Overloaded
from innoscope.daemon.http.roles import Role
from innoscope.daemon.http.server import ListenAddress, Request, Response, WebServer, plain
from innoscope.daemon.http.web_config import Watched
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


def say(request: Request) -> Response:
    return Response(
        json.dumps({"query": dict(request.query), "trusted": request.client.role is Role.STACKS}).encode()
    )


def fail(_: Request) -> Response:
    raise KeyError("a secret of ours")


@contextmanager
def serving(config: Path | None = None, address: str = "127.0.0.1:0") -> Iterator[WebServer]:
    server = WebServer(ListenAddress.parse(address), {"/say": say, "/fail": fail}, Watched(config))
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


def get(
    server: WebServer, path: str = "/say", method: str = "GET", context: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_routes_queries_and_errors_are_answered() -> None:
    with serving() as server:
        status, headers, body = get(server, "/say?a=1&b=")
        assert (status, json.loads(body)["query"]) == (200, {"a": "1", "b": ""})
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert get(server, "/nowhere")[0] == 404
        assert get(server, "/say", "HEAD")[2] == b""
        assert get(server, "/say", "POST")[0] == 405
        status, _, body = get(server, "/fail")
        assert (status, b"secret" in body) == (500, False)


def test_one_connection_answers_many_requests() -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for _ in range(3):
            connection.request("GET", "/say")
            assert connection.getresponse().read()
        assert len(server.connections) == 1
        connection.close()


@pytest.mark.parametrize(
    ("headers", "trusted"),
    [
        ({}, True),
        ({"Host": "localhost:9977"}, True),
        ({"Host": "evil.example.net"}, False),
        *(({name: "127.0.0.1"}, False) for name in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")),
    ],
    ids=str,
)
def test_requests_with_another_host_name_or_through_a_proxy_are_not_trusted(
    headers: dict[str, Any], trusted: bool
) -> None:
    with serving() as server:
        assert json.loads(get(server, **headers)[2])["trusted"] is trusted


def test_addresses_other_than_loopback_are_trusted_only_with_a_password(tmp_path: Path) -> None:
    with serving(address=":0") as server:
        assert not json.loads(get(server)[2])["trusted"]
    config = tmp_path / "web.yaml"
    config.write_text(f'basic_auth_users: {{ann: "{HASH}"}}\n')
    with serving(config, address=":0") as server:
        status, headers, _ = get(server)
        assert (status, headers["WWW-Authenticate"]) == (401, "Basic")
        assert get(server, Authorization="Basic YW5uOndyb25n")[0] == 401
        status, _, body = get(server, Authorization="Basic YW5uOnNlY3JldA==")
        assert (status, json.loads(body)["trusted"]) == (200, True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder)
    return folder


def test_client_certificates_are_required_and_verified(certificate: Path) -> None:
    config = certificate / "web.yaml"
    config.write_text(
        "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_ca_file: cert.pem,"
        " client_auth_type: RequireAndVerifyClientCert}\n"
        "http_server_config: {headers: {Strict-Transport-Security: max-age=9}}\n"
    )
    stranger = ssl.create_default_context(cafile=certificate / "cert.pem")
    known = ssl.create_default_context(cafile=certificate / "cert.pem")
    known.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with serving(config) as server:
        status, headers, body = get(server, context=known)
        assert (status, json.loads(body)["trusted"]) == (200, True)
        assert headers["Strict-Transport-Security"] == "max-age=9"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(server, context=stranger)
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            get(server)


def test_slow_clients_do_not_lock_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the slow clients an hour for their requests."""
    monkeypatch.setattr(http_server, "_REQUEST_S", 3600)
    with serving() as server, ExitStack() as stack:
        for number in range(3 * MAX_CONNECTIONS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            slow.sendall(b"GET /say HTTP/1.1\r\nX: " if number % 2 else b"")
        assert get(server)[0] == 200
        assert len(server.connections) <= MAX_CONNECTIONS


@contextmanager
def socket_pairs(count: int) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """Yield the server's ends and the clients' ends of ``count`` connections."""
    pairs = [socket.socketpair() for _ in range(count)]
    yield [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_request_that_hangs_stops_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the heartbeat continues until the request exceeds its deadline, and after it has ended."""
    monkeypatch.setattr(http_server, "_HUNG_S", 3600.0)
    monkeypatch.setattr(http_server, "_SWEEP_S", 0.01)
    begun, gate, beats = threading.Event(), threading.Event(), list[int]()

    def hang(_: Request) -> Response:
        begun.set()
        gate.wait(30)
        return plain("ended")

    server = WebServer(ListenAddress.parse("127.0.0.1:0"), {"/api/hang": hang}, Watched(None))
    threading.Thread(target=server.serve, args=(lambda: beats.append(len(beats)),)).start()
    try:
        client = threading.Thread(target=get, args=(server, "/api/hang"))
        client.start()
        assert begun.wait(30)
        before = len(beats)
        until(lambda: len(beats) > before + 10)
        monkeypatch.setattr(http_server, "_HUNG_S", 1e-9)
        last = len(beats) + 1  # the server may already have decided on one more
        time.sleep(20 * http_server._SWEEP_S)
        assert len(beats) <= last
        gate.set()
        client.join()
        until(lambda: len(beats) > last)
        assert server.connections.longest_s() == 0
    finally:
        server.stop()


def closed(client_socket: socket.socket) -> bool:
    """Return whether the server closed the connection."""
    client_socket.setblocking(False)
    try:
        return client_socket.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_connection_with_a_request_is_not_evicted() -> None:
    with socket_pairs(4) as (ours, theirs):
        connections = Connections(limit=2)
        busy = connections.add(ours[0], "a", 9)
        with connections.answering(busy):
            connections.add(ours[1], "a", 9)
            connections.add(ours[2], "a", 9)  # this evicts the second connection
            assert [closed(one) for one in theirs[:3]] == [False, True, False]
        connections.add(ours[3], "a", 9)  # this evicts the third one, because the first was used later
        assert [closed(one) for one in theirs] == [False, True, True, False]


def test_the_client_with_the_most_connections_is_evicted_first() -> None:
    with socket_pairs(5) as (ours, theirs):
        connections = Connections(limit=3)
        for client_socket, client in zip(
            ours, ("prometheus", "crowd", "crowd", "crowd", "another"), strict=True
        ):
            connections.add(client_socket, client, 9)
        assert [closed(one) for one in theirs] == [False, True, True, False, False]


def test_expired_connections_are_closed() -> None:
    with socket_pairs(2) as (ours, theirs):
        connections = Connections()
        connections.add(ours[0], "a", -1)
        connections.add(ours[1], "a", 9)
        connections.end_expired()
        assert [closed(one) for one in theirs] == [True, False]


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_clients_are_counted_by_address_or_network(address: str, client: str) -> None:
    assert client_of(address) == client


@pytest.mark.parametrize("sent", [b"GET /say", b"GET /say HTTP/1.1\r\nX: "])
def test_a_request_that_never_ends_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that further bytes do not extend the deadline."""
    monkeypatch.setattr(http_server, "_REQUEST_S", 1)
    monkeypatch.setattr(http_server, "_SWEEP_S", 0.1)
    began = time.monotonic()
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), 60) as client_socket:
        client_socket.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while not closed(client_socket):
                assert time.monotonic() - began < 60
                client_socket.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began > 0.5


def test_a_connection_that_gets_no_thread_is_closed_and_the_next_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make the start of a thread fail, as it does when the systemd unit reaches TasksMax."""
    with serving() as server:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", lambda _: fail_to_start())
            with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
                get(server)
        assert len(server.connections) == 0
        assert get(server)[0] == 200


def fail_to_start() -> None:
    raise RuntimeError("can't start new thread")


def test_expensive_responses_are_limited() -> None:
    load = ExpensiveResponses(generating=1, unsent=10, patience_s=0)
    with load.generating(), pytest.raises(Overloaded), load.generating():
        pass
    # While no other response is unsent, a response of any size is allowed.
    with load.generating(), load.sending(11), pytest.raises(Overloaded), load.sending(1):
        pass
    with load.sending(5), load.sending(5), pytest.raises(Overloaded), load.sending(1):
        pass


def test_stopping_does_not_wait_for_connected_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_S", 3600)
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), 60) as client_socket:
        until(lambda: len(server.connections) == 1)
        server.stop()
        client_socket.settimeout(30)
        assert client_socket.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 1)


@pytest.mark.parametrize("text", ["", "9977", "host", "a:b", "1:2:3", "127.0.0.1:99999"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(BadFile):
        ListenAddress.parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:1", "127.0.0.1", 1), (":2", "", 2), ("[::1]:3", "::1", 3)]
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert ListenAddress.parse(text) == ListenAddress(host, port)
    assert str(ListenAddress.parse(text)) == text


def test_a_port_in_use_is_an_error() -> None:
    with serving() as server, pytest.raises(BadFile, match="cannot listen"):
        WebServer(ListenAddress("127.0.0.1", server.port), {}, Watched(None))
