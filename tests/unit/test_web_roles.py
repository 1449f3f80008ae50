"""Users and clients with certificates get what their roles allow, and each download of data is logged."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import ssl
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest

from certificates import self_signed
from innoscope.common.errors import BadFile
from innoscope.common.logs import Structured
from innoscope.daemon.agent.config import Watch
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.http import web_config
from innoscope.daemon.http.audit import AuditLog
from innoscope.daemon.http.roles import Client, Role, Roles
from innoscope.daemon.http.server import ListenAddress, Request, Response, WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
FILE = "stall-mysql-1-20260101T000000Z.innoscope"
USERS = f"""
basic_auth_users: {{prometheus: "{HASH}", oncall: "{HASH}", dba: "{HASH}"}}
innoscope_roles: {{users: {{prometheus: metrics, oncall: findings}}}}
"""


def say(request: Request) -> Response:
    return Response(json.dumps([request.client.role, request.client.name]).encode())


@contextmanager
def serving(config: Path | None, incidents: Incidents | None = None) -> Iterator[WebServer]:
    routes = {"/say": say, "/api/stacks": say, "/api/flame": say}
    if incidents is not None:
        routes["/api/incidents"] = incidents.answer
    server = WebServer(ListenAddress.parse("127.0.0.1:0"), routes, web_config.Watched(config))
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


def get(
    server: WebServer, path: str = "/say", user: str | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    )
    coded = base64.b64encode(f"{user}:secret".encode()).decode()
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {coded}"} if user else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def written(folder: Path, text: str) -> Path:
    (folder / "web.yaml").write_text(text)
    return folder / "web.yaml"


@pytest.mark.parametrize(
    ("user", "role"),
    [("prometheus", Role.METRICS), ("oncall", Role.FINDINGS), ("dba", Role.STACKS)],
)
def test_users_have_their_roles_and_others_all_rights(user: str, role: Role, tmp_path: Path) -> None:
    with serving(written(tmp_path, USERS)) as server:
        assert json.loads(get(server, user=user)[1]) == [role, user]
        assert get(server, user="stranger")[0] == 401
        assert get(server)[0] == 401


def test_incidents_need_findings_and_their_files_stacks(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"content")
    incidents = Incidents(Watch(directory=str(tmp_path)))
    paths = ("/api/incidents", f"/api/incidents?file={FILE}")
    with serving(written(tmp_path, USERS), incidents) as server:
        found = {
            user: [get(server, path, user)[0] for path in paths] for user in ("prometheus", "oncall", "dba")
        }
        assert found == {"prometheus": [403, 403], "oncall": [200, 403], "dba": [200, 200]}
        assert b"the role findings does not include stacks" in get(server, paths[1], "oncall")[1]


def test_without_configuration_local_clients_may_read_everything(tmp_path: Path) -> None:
    with serving(None) as server:
        assert json.loads(get(server)[1]) == [Role.STACKS, ""]


@pytest.mark.parametrize(
    ("user", "names", "role"),
    [
        ("a", ["x"], Role.METRICS),
        ("b", ["x"], Role.FINDINGS),
        ("b", ["y"], Role.STACKS),
        (None, ["y", "x"], Role.FINDINGS),
        (None, [], Role.STACKS),
    ],
)
def test_lowest_role_of_user_and_certificate_counts(user: str | None, names: list[str], role: Role) -> None:
    roles = Roles({"a": Role.METRICS}, {"x": Role.FINDINGS})
    assert roles.of(user, names) is role


def test_refusal_names_the_reason() -> None:
    assert Client(Role.STACKS, "a").why_not(Role.STACKS) is None
    assert "does not include stacks" in (Client(Role.FINDINGS, "a").why_not(Role.STACKS) or "")
    assert "authenticated clients" in (Client(Role.METRICS).why_not(Role.FINDINGS) or "")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with one certificate for both the CA and the server, and one for ``scraper``."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder)
    request = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=scraper"]
    files = ["-keyout", str(folder / "scraper.key"), "-out", str(folder / "scraper.csr")]
    subprocess.run([*request, *files], check=True, capture_output=True, timeout=60)
    sign = ["openssl", "x509", "-req", "-in", str(folder / "scraper.csr"), "-days", "2", "-set_serial", "7"]
    by = ["-CA", str(folder / "cert.pem"), "-CAkey", str(folder / "key.pem")]
    subprocess.run(
        [*sign, *by, "-out", str(folder / "scraper.pem")], check=True, capture_output=True, timeout=60
    )
    return folder


def context_of(authority: Path, *pair: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority / "cert.pem")
    if pair:
        context.load_cert_chain(authority / pair[0], authority / pair[1])
    return context


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("RequireAndVerifyClientCert", [[Role.METRICS, "scraper"], [Role.STACKS, "localhost"]]),
        ("VerifyClientCertIfGiven", [[Role.METRICS, "scraper"], [Role.STACKS, ""]]),
    ],
)
def test_certificates_have_their_roles(kind: str, expected: list[list[Any]], authority: Path) -> None:
    config = written(
        authority,
        f"tls_server_config: {{cert_file: cert.pem, key_file: key.pem, client_ca_file: cert.pem,"
        f" client_auth_type: {kind}}}\ninnoscope_roles: {{certificates: {{scraper: metrics}}}}\n",
    )
    with serving(config) as server:
        found = [
            json.loads(get(server, context=context_of(authority, *pair))[1])
            for pair in (("scraper.pem", "scraper.key"), ("cert.pem", "key.pem"))
        ]
    assert found == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("innoscope_roles: {users: {ann: metrics}}", "users.ann is not in basic_auth_users"),
        ("innoscope_roles: {certificates: {a: metrics}}", "needs tls_server_config.client_ca_file"),
        (USERS.replace("metrics", "everything"), "Expected `str` matching regex"),
        ("innoscope_roles: {user: {}}", "unknown field `user`"),
    ],
)
def test_invalid_roles_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=words):
        web_config.load(written(tmp_path, text))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("user", "what", "server", "file", "requests", "bytes")
    return [
        {name: record.__dict__[name] for name in names if name in record.__dict__}
        for record in caplog.records
        if record.message == "data was read"
    ]


def test_downloads_are_logged_with_user_and_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / FILE).write_bytes(b"content")
    incidents = Incidents(Watch(directory=str(tmp_path)))
    with serving(written(tmp_path, USERS), incidents) as server:
        get(server, "/api/stacks?server=orders", "dba")
        get(server, f"/api/incidents?file={FILE}", "dba")
        get(server, f"/api/incidents?file={FILE}", "oncall")  # refused
        get(server, "/api/incidents?file=other", "dba")  # not found
        get(server, "/api/incidents", "dba")
        get(server, "/say", "dba")
    assert lines(caplog) == [
        {"user": "dba", "what": "stacks", "server": "orders", "requests": 1, "bytes": len('[3, "dba"]')},
        {"user": "dba", "what": "incident file", "file": FILE, "requests": 1, "bytes": 7},
    ]
    assert {record.__dict__["client"] for record in caplog.records if "client" in record.__dict__} == {
        "127.0.0.1"
    }


def test_repeated_requests_are_counted_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    audit = AuditLog(lambda: now[0])
    for second in range(0, 60, 10):
        now[0] = float(second)
        audit.add("", "10.0.0.1", "/api/flame", {"server": "orders", "from": str(second)}, 100)
        audit.flush()
    audit.add("", "10.0.0.2", "/api/flame", {"server": "orders"}, 1)
    assert [one["requests"] for one in lines(caplog)] == [1, 1]
    now[0] = 60.0
    audit.flush()
    assert lines(caplog)[2] == {
        "user": "-", "what": "stacks", "server": "orders", "requests": 5, "bytes": 500
    }  # fmt: skip
    audit.flush(everything=True)
    assert len(lines(caplog)) == 3


def test_number_of_counted_downloads_is_bounded_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit = AuditLog(lambda: 0.0)
    for number in range(1_500):
        for _ in range(2):
            audit.add("", str(number), "/api/stacks", {}, 1)
    assert len(audit._repeated) == 1_000
    audit.flush(everything=True)
    assert sum(one["requests"] for one in lines(caplog)) == 3_000


def test_names_cannot_forge_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    AuditLog().add("a\nts=1 level=info", "10.0.0.1", "/api/stacks", {"server": "x\x1b[2J\nmsg=y"}, 1)
    text = Structured("logfmt").format(caplog.records[0])
    assert "\n" not in text
    assert "\x1b" not in text
