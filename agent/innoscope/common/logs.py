"""Write structured logs to stderr: one line per event, as logfmt or JSON."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Final

from innoscope.common import sanitize

_log = logging.getLogger(__name__)

FORMATS: Final = ("logfmt", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

#: Standard attributes of a LogRecord. All other attributes were passed as ``extra``.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(form: str, level: str) -> None:
    """Log to stderr in format ``form`` (one of FORMATS), at severity ``level`` (one of LEVELS) and above."""
    logging.basicConfig(level=level.upper(), handlers=[_handler(form)], force=True)


def set_up_for_command(*, debug: bool) -> None:
    """Log warnings and errors only with ``debug``, because a command's output already reports what matters.

    Uncaught exceptions are always logged. Without this handler, Python would print messages and tracebacks
    unescaped.
    """
    handler = _handler("logfmt")
    handler.setLevel(logging.WARNING if debug else logging.CRITICAL)
    logging.basicConfig(handlers=[handler])


def log_uncaught() -> None:
    """Log uncaught exceptions, because Python would print them unescaped."""
    sys.excepthook = _log_exception
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_thread_exception


def _log_exception(kind: type[BaseException], error: BaseException | None, _: object = None) -> None:
    _log.critical("uncaught exception", extra={"type": kind.__name__}, exc_info=error)


def _log_thread_exception(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_type is not SystemExit:
        _log_exception(uncaught.exc_type, uncaught.exc_value)


def _log_unraisable(uncaught: sys.UnraisableHookArgs) -> None:
    _log_exception(uncaught.exc_type, uncaught.exc_value)


def _handler(form: str) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(Structured(form))
    return handler


class Structured(logging.Formatter):
    """A formatter for logfmt or JSON: time, level, component, message, ``extra`` fields, traceback."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._as_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "ts": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "component": record.name,
            "msg": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            return sanitize.dumps(fields, default=str)
        return " ".join(f"{sanitize.line(name)}={_logfmt(value)}" for name, value in fields.items())


def _logfmt(value: object) -> str:
    """Format a value for logfmt. Quote it, with JSON escapes, unless it is a word without ``"`` and ``=``."""
    text = str(value)
    plain = text.isprintable() and not set(' "=') & set(text)
    return text if text and plain else sanitize.dumps(text)
