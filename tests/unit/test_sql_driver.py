"""PyMySQL is imported without what a Unix socket does not need, and gets it when TCP does."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

#: Not every host has it: PyMySQL only takes what is there.
_THERE = find_spec("cryptography") is not None

_TELLING = """
import json, sys
from innoscope.target.sql import driver
told = []
for over_tcp in json.loads(sys.argv[1]):
    driver(over_tcp=over_tcp)
    from pymysql import _auth, connections
    assert connections._auth is _auth
    assert connections.SSL_ENABLED == (connections.ssl is not None) == ("ssl" in sys.modules)
    told.append(["cryptography" in sys.modules, _auth._have_cryptography, connections.SSL_ENABLED])
print(json.dumps(told))
"""


def _told(*over_tcp: bool, before: str = "") -> list[list[bool]]:
    """After each connection: whether RSA was imported, whether PyMySQL can use it, and TLS."""
    done = subprocess.run(
        [sys.executable, "-c", before + _TELLING, json.dumps(over_tcp)],
        capture_output=True,
        text=True,
        check=True,
    )
    told: list[list[bool]] = json.loads(done.stdout)
    return told


def test_a_socket_needs_neither_rsa_nor_tls() -> None:
    assert _told(False, False) == [[False, False, False], [False, False, False]]


def test_tcp_gets_it_first_or_later() -> None:
    assert _told(True, False) == [[_THERE, _THERE, True], [_THERE, _THERE, True]]
    assert _told(False, True) == [[False, False, False], [_THERE, _THERE, True]]


def test_other_threads_keep_their_tls() -> None:
    beside = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    assert _told(False, False, before=beside) == [[False, False, True], [False, False, True]]
