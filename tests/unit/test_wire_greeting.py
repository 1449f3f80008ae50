"""Only complete, valid server greetings are accepted."""

from __future__ import annotations

import pytest

from fuzz import targets
from innoscope.common.errors import SqlFailed
from innoscope.target.wire import require_greeting
from safety.fake_server import FORMS, PLUGINS, greeting

WELL_FORMED = ("as it should be", "without an end", "with a long nonce", "with an old server's length")


@pytest.mark.parametrize("form", WELL_FORMED)
def test_valid_greetings_are_accepted(form: str) -> None:
    require_greeting(greeting("mysql_native_password", form))


@pytest.mark.parametrize("plugin", ["", "sha256_password"])
@pytest.mark.parametrize("form", sorted({*FORMS} - {*WELL_FORMED, "without the rest of the nonce"}))
def test_an_incomplete_greeting_is_refused(form: str, plugin: str) -> None:
    with pytest.raises(SqlFailed, match="not a MySQL server"):
        require_greeting(greeting(plugin, form))


def test_an_error_packet_is_left_to_pymysql() -> None:
    require_greeting(b"\xff\x10\x04Too many connections")


def test_a_truncated_greeting_is_refused() -> None:
    whole = greeting("mysql_native_password")
    fixed = whole.index(b"mysql_native_password")
    for length in range(fixed + 1):
        with pytest.raises(SqlFailed, match="not a MySQL server"):
            require_greeting(whole[:length])


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tls", [True, False])
def test_the_first_packet_never_contains_the_password(plugin: str, form: str, *, tls: bool) -> None:
    targets.greeting(greeting(plugin, form, tls=tls))


def test_the_fuzz_target_detects_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets._Replayed, "_check_plugin", lambda _self: None)
    with pytest.raises(AssertionError, match="password was sent to an unverified server"):
        targets.greeting(greeting("sha256_password", tls=True))
