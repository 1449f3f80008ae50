"""A push over a real socket follows both APIs, ends in time, and reports the reason for every failure."""

from __future__ import annotations

import base64
import email.utils
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import receiver as faults
from certificates import self_signed
from innoscope.common import schema
from innoscope.common.errors import BadFile
from innoscope.daemon.push.client import PushClient, retry_after
from innoscope.daemon.push.errors import REASONS, PushFailed
from innoscope.daemon.push.formats import push_request
from innoscope.daemon.push.pusher import queued_profile
from innoscope.daemon.push.settings import Push
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from receiver import Receiver
from unit.snapshots import IDLE, ROW_LOCK, target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = 1_700_000_000.0
CHUNK = Chunk(
    T + 0.25, T + 9.25, 10, 40.0,
    {
        ClassifiedStack.of("idle", Trust.EXACT, IDLE): 30,
        ClassifiedStack.of("row_lock", Trust.TORN, ROW_LOCK): 12,
    },
)  # fmt: skip
MADE = queued_profile("shop, {main}", target(), [CHUNK])
#: A profile that is larger than a socket's buffers.
HUGE = replace(MADE, pprof=b"\x1f\x8b" + bytes(24 << 20))
WITHIN_S = 0.4
#: Maximum seconds of a request on a busy host. Without a timeout, a slow receiver would prolong it further.
PATIENCE_S = 30.0


def push(to: Receiver | str, **more: Any) -> Push:
    if isinstance(to, str):
        return Push(url=to, timeout_seconds=WITHIN_S, **more)
    return Push(url=to.url, kind=to.kind, **{"timeout_seconds": 60.0, **more})


def send(settings: Push, made: Any = MADE) -> None:
    PushClient(settings).post(push_request(made, settings, "db1"))


def failure(settings: Push, made: Any = MADE) -> PushFailed:
    with pytest.raises(PushFailed) as caught:
        send(settings, made)
    assert caught.value.reason in REASONS
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("kind", ["pyroscope", "parca"])
def test_both_receivers_accept_a_profile_with_its_labels(kind: str) -> None:
    with Receiver(kind) as there:
        send(push(there, labels={"cluster": "orders"}, tenant="dba", headers={"X-Example": "a b"}))
        assert there.complaints == []
        (got,) = there.received

    name = "shop, {main}" if kind == "parca" else "shop_ _main_"
    assert got.labels == {
        "__name__": "mysqld", "server": name, "flavour": "mysql", "version": "5.6.24", "instance": "db1",
        "cluster": "orders",
    }  # fmt: skip
    assert got.profile.sample_type == ("threads", "count")
    assert got.profile.by_label("wait") == {"idle": 30, "row_lock": 12}
    assert got.profile.by_label("trust") == {"torn": 12}
    assert got.profile.total == sum(CHUNK.counts.values())
    assert got.profile.time_nanos == int(CHUNK.start * 1e9)
    assert got.profile.duration_nanos == pytest.approx(9e9, rel=0.01)
    assert got.span in (None, (T, T + 10))
    assert (got.headers["X-Scope-OrgID"], got.headers["X-Example"]) == ("dba", "a b")
    assert got.headers["Authorization"] is None


def test_the_instance_label_can_be_overridden() -> None:
    with Receiver() as there:
        send(push(there, labels={"instance": "db1.example.net:9977"}))
        assert there.received[0].labels["instance"] == "db1.example.net:9977"


@pytest.mark.parametrize(
    ("code", "reason", "again"),
    [
        (400, "refused", False), (401, "auth", False), (403, "auth", False), (404, "refused", False),
        (408, "timeout", True), (413, "too_large", False), (422, "refused", False), (429, "busy", True),
        (500, "error", True), (502, "unavailable", True), (503, "unavailable", True),
        (504, "unavailable", True), (307, "redirect", False),
    ],
)  # fmt: skip
def test_each_status_code_has_a_reason_and_is_retried_or_not(code: int, reason: str, again: bool) -> None:
    with Receiver() as there:
        there.faults.append(faults.status(code, b"so \x1b[31mit\nis", {"Retry-After": "7"}))
        error = failure(push(there))

    assert (error.reason, error.again) == (reason, again)
    assert error.after_s == (7 if again else 0)
    assert error.what.endswith(f"answered {code}: so \\x1b[31mit is")


def test_a_redirect_is_not_followed() -> None:
    with Receiver() as there, Receiver() as elsewhere:
        there.faults.append(faults.status(302, b"", {"Location": f"{elsewhere.url}/ingest"}))
        failure(push(there))
        assert elsewhere.requests == 0


@pytest.mark.parametrize(
    "fault", [faults.silent, faults.trickled_status, faults.trickled_refusal, faults.read_slowly]
)
@pytest.mark.parametrize("tls", [False, True])
def test_slow_receivers_time_out(fault: Callable[[faults.Handler], None], tls: bool, tmp_path: Path) -> None:
    if tls:
        self_signed(tmp_path)
    more = {"ca_file": str(tmp_path / "cert.pem")} if tls else {}
    with Receiver(certificate=tmp_path if tls else None) as there:
        there.faults.append(fault)
        began = time.monotonic()
        made = HUGE if fault is faults.read_slowly else MADE
        # the status of the refusal must arrive within the timeout
        timeout_s = 3.0 if fault is faults.trickled_refusal else WITHIN_S
        error = failure(push(there, **{**more, "timeout_seconds": timeout_s}), made)

    assert error.reason == ("unavailable" if fault is faults.trickled_refusal else "timeout")
    assert error.again
    assert time.monotonic() - began < PATIENCE_S


def test_a_timeout_is_reported_with_the_limit_of_the_request() -> None:
    with Receiver() as there:
        there.faults.append(faults.silent)
        settings = push(there)
        with pytest.raises(PushFailed) as caught:
            PushClient(settings).post(push_request(MADE, settings, "db1"), timeout_s=0.25)

    assert caught.value.what.endswith("did not accept the profile within 0.25 s")


@pytest.mark.parametrize("kind", ["pyroscope", "parca"])
def test_an_accepted_profile_counts_as_sent_even_if_the_response_never_ends(kind: str) -> None:
    with Receiver(kind) as there:
        there.faults.append(faults.trickled)
        began = time.monotonic()
        send(push(there))

    assert time.monotonic() - began < PATIENCE_S


def test_a_missing_tls_handshake_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        began = time.monotonic()
        error = failure(push(f"https://127.0.0.1:{there.getsockname()[1]}"))

    assert error.reason == "timeout"
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize(
    ("fault", "reason", "again"),
    [
        (faults.reset, "connection", True),
        (faults.hung_up, "connection", True),
        (faults.no_http, "protocol", True),
        (faults.refused_unread, "too_large", False),
    ],
)
def test_a_broken_connection_has_a_reason_and_the_next_push_succeeds(
    fault: Callable[[faults.Handler], None], reason: str, again: bool
) -> None:
    with Receiver() as there:
        there.faults.append(fault)
        error = failure(push(there))
        assert (error.reason, error.again) == (reason, again)
        send(push(there))
        assert len(there.received) == 1


def test_a_closed_port_and_an_unknown_host_have_different_reasons() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert failure(Push(url=f"http://127.0.0.1:{port}", timeout_seconds=60.0)).reason == "connection"
    error = failure(Push(url="http://nowhere.invalid", timeout_seconds=60.0))
    assert (error.reason, error.again) == ("dns", True)
    assert "nowhere.invalid" in error.what


def test_a_web_page_is_not_a_valid_response() -> None:
    with Receiver("parca") as there:
        there.faults.append(faults.page)
        error = failure(push(there))

    assert (error.reason, error.again) == ("protocol", False)


def test_certificates_are_verified(tmp_path: Path) -> None:
    self_signed(tmp_path)
    with Receiver(certificate=tmp_path) as there:
        send(push(there, ca_file=str(tmp_path / "cert.pem")))
        assert failure(push(there)).reason == "tls"
        assert len(there.received) == 1
    with Receiver(certificate=tmp_path, host="127.0.0.2") as another:
        assert "127.0.0.2" in failure(push(another, ca_file=str(tmp_path / "cert.pem"))).what
        assert another.requests == 0
    with Receiver() as plain:
        over_tls = msgspec.structs.replace(push(plain), url=plain.url.replace("http:", "https:"))
        assert failure(over_tls).reason == "tls"


def test_tokens_are_read_for_each_push_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    with Receiver() as there:
        settings = push(there, bearer_token_file=str(token))
        send(settings)
        token.write_text("second-secret\n")
        send(settings)
        there.faults.append(faults.status(401, b"no such token: second-secret"))
        error = failure(settings)
        sent = [got.headers["Authorization"] for got in there.received]

    assert sent == ["Bearer first-secret", "Bearer second-secret"]
    assert "secret" not in error.what
    token.unlink()
    assert failure(settings).reason == "file"


def test_passwords_are_sent_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("ann:se cret\n")
    with Receiver() as there:
        settings = push(there, basic_auth_file=str(file))
        send(settings)
        there.faults.append(faults.status(403, b"Basic YW5uOnNlIGNyZXQ= (se cret)"))
        error = failure(settings)

    assert there.received[0].headers["Authorization"] == "Basic " + base64.b64encode(b"ann:se cret").decode()
    assert error.what.endswith("403: Basic … (…)")


def test_unusable_files_are_found_by_the_check(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("two\nlines\n")
    for settings in (
        Push(url="https://a", bearer_token_file=str(bad)),
        Push(url="https://a", ca_file=str(bad)),
        Push(url="https://a", ca_file=str(tmp_path / "none")),
    ):
        with pytest.raises(BadFile, match="cannot use"):
            PushClient(settings).check()
    PushClient(Push(url="https://a")).check()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0), ("3", 3), ("86400", 600), ("-1", 0), ("soon", 0), ("", 0),
        (email.utils.formatdate(T + 40, usegmt=True), 40),
    ],
)  # fmt: skip
def test_retry_after_is_read_and_bounded(header: str | None, seconds: float) -> None:
    assert retry_after(header, T) == seconds


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "pyroscope:4040"}, "malformed url"),
        ({"url": "https://ann:secret@a"}, "use basic_auth_file"),
        ({"url": "http://a:99999"}, "malformed url"),
        ({"url": "http://a/ingest?name=x"}, "must not contain a query"),
        ({"kind": "jaeger"}, r"kind: .*pyroscope\|parca"),
        ({"name": "my sqld"}, "name: "),
        ({"interval_seconds": 1.0}, "interval_seconds: Expected `float` >= 10"),
        ({"timeout_seconds": 600.0}, "timeout_seconds: Expected `float` <= 60"),
        ({"memory_bytes": 1}, "memory_bytes: Expected `int` >= 65536"),
        ({"bearer_token_file": "/a", "basic_auth_file": "/b"}, "mutually exclusive"),
        ({"cert_file": "/a"}, "must be set together"),
        ({"labels": {"server": "a"}}, "is set by the agent"),
        ({"labels": {"a-b": "a"}}, "is not a valid label name"),
        ({"labels": {"a": "b,c"}}, "Pyroscope rejects"),
        ({"headers": {"Authorization": "Bearer x"}}, "set by bearer_token_file or basic_auth_file"),
        ({"headers": {"X": "a\r\nY: b"}}, "is not a valid header"),
        ({"tenant": "a\nb"}, "tenant must be one line"),
    ],
)
def test_an_invalid_setting_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=words):
        schema.convert(settings, Push, "agent.toml")


def test_each_receiver_has_its_default_path() -> None:
    assert Push(url="http://a:4040").target.path == "/ingest"
    assert Push(url="http://a:7070/", kind="parca").target.path == "/api/profiles/writeraw"
    assert Push(url="https://a/tenant/ingest").target.path == "/tenant/ingest"


def test_no_timer_thread_is_left() -> None:
    before = set(threading.enumerate())
    with Receiver() as there:
        send(push(there))
        for thread in set(threading.enumerate()) - before:
            if isinstance(thread, threading.Timer):
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
