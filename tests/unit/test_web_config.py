"""The web configuration file may contain only supported keys, and is reloaded when it changes."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING

import bcrypt
import pytest

from innoscope.common.errors import BadFile
from innoscope.daemon.http import web_config
from innoscope.daemon.http.auth import TooManyGuesses, Verifier, parse

if TYPE_CHECKING:
    from pathlib import Path

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_keys_of_the_exporter_toolkit_are_read(tmp_path: Path) -> None:
    file = written(
        tmp_path / "web.yaml",
        f"""
tls_server_config: {{cert_file: c.pem, key_file: /k.pem, client_ca_file: ca.pem,
  client_auth_type: RequireAndVerifyClientCert, min_version: TLS13}}
http_server_config: {{http2: false, headers: {{X-Frame-Options: deny}}}}
basic_auth_users: {{ann: "{HASH}"}}
""",
    )
    found = web_config.load(file)

    assert found.tls is not None
    assert (found.tls.cert_file, str(found.tls.key_file)) == (tmp_path / "c.pem", "/k.pem")
    assert found.authenticates
    assert found.users == {"ann": HASH.encode()}
    assert found.headers == {"X-Frame-Options": "deny"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rate_limit: {burst: 1}", "line 1: Object contains unknown field `rate_limit`"),
        (
            "tls_server_config: {cert_file: a, key_file: b, cipher_suites: [x]}",
            "line 1: tls_server_config: Object contains unknown field `cipher_suites`",
        ),
        ("tls_server_config: {cert_file: a}", "tls_server_config: cert_file and key_file are both required"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}",
            r"client_auth_type: Expected `str` matching regex .*NoClientCert\|",
        ),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "client_ca_file needs a client_auth_type",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "client_ca_file needs a"),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}",
            r"min_version: Expected `str` matching regex .*TLS12\|TLS13",
        ),
        ("http_server_config: {http2: true}", "http2 is not supported"),
        ("http_server_config: {headers: {Set-Cookie: a}}", "Set-Cookie is not supported"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "X-Frame-Options is not supported"),
        ("basic_auth_users: {ann: secret}", "is not a bcrypt hash"),
        ("basic_auth_users: [ann]", r"basic_auth_users: Expected `object \| null`, got `array`"),
        ("tls_server_config: {cert_file: [a], key_file: b}", "cert_file: Expected `str`, got `array`"),
        ("tls_server_config: {cert_file: a, key_file: ''}", "cert_file and key_file are both required"),
        ("http_server_config: {headers: {X-Frame-Options: 1}}", "Expected `str`, got `int`"),
        ("basic_auth_users: " + "[" * 5000, "as YAML"),
        ("[]", r"Expected `object \| null`, got `array`"),
        ("{", "cannot parse .* as YAML"),
    ],
)
def test_unsupported_and_invalid_keys_are_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadFile, match=words):
        web_config.load(written(tmp_path / "web.yaml", text)).authenticates  # noqa: B018


@pytest.mark.parametrize("text", ["# nothing\n", "tls_server_config: {}", "tls_server_config:\n"])
def test_without_settings_it_is_plain_http(tmp_path: Path, text: str) -> None:
    assert web_config.load(written(tmp_path / "web.yaml", text)) == web_config.WebConfig()


def test_a_changed_file_is_reloaded_unless_it_is_invalid(tmp_path: Path) -> None:
    file = written(tmp_path / "web.yaml", f'basic_auth_users: {{ann: "{HASH}"}}')
    watched = web_config.Watched(file)
    assert set(watched.current()[0].users) == {"ann"}

    written(file, "basic_auth_users: {bob: nonsense}")
    assert set(watched.current()[0].users) == {"ann"}

    written(file, f'basic_auth_users: {{bobby: "{HASH}"}}')
    assert set(watched.current()[0].users) == {"bobby"}

    file.unlink()
    assert set(watched.current()[0].users) == {"bobby"}


def test_an_invalid_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no")
    file = written(tmp_path / "web.yaml", "tls_server_config: {cert_file: c.pem, key_file: c.pem}")
    with pytest.raises(BadFile, match=r"cannot use .*c\.pem"):
        web_config.Watched(file)


def test_only_the_right_password_is_accepted() -> None:
    verifier = Verifier()
    users = {"ann": HASH.encode()}

    assert verifier.admits(None, {})
    assert verifier.admits("Basic YW5uOnNlY3JldA==", users)  # ann:secret
    assert verifier.admits("basic YW5uOnNlY3JldA==", users)
    for header in (
        None,
        "",
        "Basic",
        "Basic !",
        "Bearer YW5uOnNlY3JldA==",
        "Basic YW5uOndyb25n",
        "Basic Ym9iOnNlY3JldA==",
    ):
        assert not verifier.admits(header, users), header


def record_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that receives every hash with which a password is compared."""
    compared: list[bytes] = []
    real = bcrypt.checkpw

    def check(password: bytes, hashed: bytes) -> bool:
        compared.append(hashed)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    return compared


def test_a_verdict_is_cached_for_its_hash_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = record_comparisons(monkeypatch)
    verifier = Verifier()
    for _ in range(3):
        assert verifier.admits("Basic YW5uOnNlY3JldA==", {"ann": HASH.encode()})
    changed = bcrypt.hashpw(b"other", bcrypt.gensalt(4))

    assert not verifier.admits("Basic YW5uOnNlY3JldA==", {"ann": changed})
    assert len(compared) == 2


def test_an_unknown_user_costs_one_comparison_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = record_comparisons(monkeypatch)

    assert not Verifier().admits("Basic Ym9iOnNlY3JldA==", {"ann": HASH.encode()})
    assert len(compared) == 1


def basic(number: int) -> str:
    return "Basic " + base64.b64encode(f"ann:guess {number}".encode()).decode()


def test_wrong_guesses_do_not_evict_accepted_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("innoscope.daemon.http.auth._PAUSE_FACTOR", 0)
    compared = record_comparisons(monkeypatch)
    verifier, users = Verifier(), {"ann": HASH.encode()}
    assert verifier.admits("Basic YW5uOnNlY3JldA==", users)
    for number in range(300):
        assert not verifier.admits(basic(number), users)
    before = len(compared)

    assert verifier.admits("Basic YW5uOnNlY3JldA==", users)
    assert len(compared) == before == 301


def test_the_number_of_waiting_comparisons_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that at most 2 comparisons per client and 8 in total wait, and that a known login never waits."""
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(password: bytes, _: bytes) -> bool:
        if password != b"secret":
            begun.release()
            go_on.wait(60)
        return password == b"secret"

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    verifier, users = Verifier(), {"ann": HASH.encode()}
    assert verifier.admits("Basic YW5uOnNlY3JldA==", users, "known")
    verdicts: list[bool | None] = []

    def guess(number: int) -> None:
        try:
            verdicts.append(verifier.admits(basic(number), users, f"client {number // 3}"))
        except TooManyGuesses:
            verdicts.append(None)
            if verdicts.count(None) == 7:
                go_on.set()

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(15)]
    for thread in threads:
        thread.start()
    begun.acquire()
    assert verifier.admits("Basic YW5uOnNlY3JldA==", users, "client 0")
    for thread in threads:
        thread.join()

    assert (verdicts.count(None), verdicts.count(False)) == (7, 8)


def test_authorization_headers_are_parsed() -> None:
    assert parse("Basic YW5uOmE6Yg==") == ("ann", b"a:b")
    assert parse("Basic /w==") is None
