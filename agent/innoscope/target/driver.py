"""PyMySQL, imported with no more than the way to the server needs: over a Unix socket neither RSA nor TLS."""

from __future__ import annotations

import importlib
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_RSA: Final = "cryptography"
_TLS: Final = "ssl"
_IMPORTING: Final = threading.Lock()


def driver(*, over_tcp: bool) -> Any:
    """PyMySQL. What it imports for RSA takes 11 ms of CPU time, for TLS 9: only TCP needs them."""
    with _IMPORTING:
        if not over_tcp and "pymysql" not in sys.modules:
            _import_without(name for name in _left_out() if name not in sys.modules)
        import pymysql

        if over_tcp:
            _complete()
        return pymysql


def _left_out() -> Iterable[str]:
    yield _RSA
    # Whoever imports HTTP meanwhile, on another thread, would do without HTTPS for good.
    if threading.active_count() == 1:
        yield _TLS


def _import_without(names: Iterable[str]) -> None:
    hidden = dict.fromkeys(names)
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None is Python's way to say that there is none
    try:
        import pymysql  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


@cache
def _complete() -> None:
    """Let PyMySQL have what was left out; once, since a host may have none."""
    from pymysql import _auth, connections

    if not getattr(_auth, "_have_cryptography", True):
        importlib.reload(_auth)
    if not connections.SSL_ENABLED:
        connections.ssl = importlib.import_module(_TLS)  # type: ignore[attr-defined]
        connections.SSL_ENABLED = True
