"""Report the settings that were changed with ``innoscope toggle``, from the status file that it writes.

The agent only reads this file. It cannot import the code that makes changes.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.samples import Outcome, Sample
from innoscope.common.toggle_status import VERSION, status_path
from innoscope.metrics.collectors.errors import CollectorFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from innoscope.target.model import Target

NAME: Final = "toggles"
#: Limit on the toggles reported of one server, newest first; the bound of the label in metrics.yaml.
MOST: Final = 12
_MOST_BYTES: Final = 256 << 10
_MAX_TEXT: Final = 80  # characters of a label's value
_RESULTS: Final = ("done", "undone", "failed")


class TogglesFile:
    """The status file, read once for all servers of a collection."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or status_path()
        self._servers: list[dict[str, Any]] = []
        self._reason: str | None = None

    def read(self) -> None:
        """Read the file. Never raises. A missing file means that nothing was ever changed."""
        try:
            self._servers, self._reason = _parse(_content(self._path)), None
        except FileNotFoundError:
            self._servers, self._reason = [], None
        except OSError as error:
            self._servers, self._reason = [], f"rights: cannot read {self._path}: {error.strerror}"
        except CollectorFailed as error:
            self._servers, self._reason = [], f"{error.reason}: {self._path}: {error.words}"

    def outcome(self, target: Target) -> Outcome:
        """Return the samples of one server."""
        began = time.monotonic()
        samples: tuple[Sample, ...] = ()
        for server in self._servers:
            if (server["pid"], server["start_time"]) == (target.pid, target.start_time):
                samples = tuple(_samples(server))
        return Outcome(NAME, self._reason is None, time.monotonic() - began, samples, self._reason)


def _samples(server: Mapping[str, Any]) -> Iterator[Sample]:
    for result in _RESULTS:
        yield Sample("toggle_changes", server["changes"][result], (result,))
    newest = sorted(server["toggles"], key=lambda one: one["since"])[-MOST:]
    yield Sample("toggle_unfinished_changes", sum(one["unfinished"] for one in newest))
    for one in newest:
        toggle = one["toggle"][:_MAX_TEXT]
        yield Sample("toggle_in_force", 1, (toggle, one["way"]))
        yield Sample("toggle_since_timestamp_seconds", one["since"], (toggle,))
        if one["until"] is not None:
            yield Sample("toggle_until_timestamp_seconds", one["until"], (toggle,))
        yield Sample("toggle_info", 1, (toggle, one["value"][:_MAX_TEXT], one["who"][:_MAX_TEXT]))


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & stat.S_IWOTH:
            raise CollectorFailed("error", "not a regular file, or world-writable")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise CollectorFailed("error", "too large")
    return content


def _parse(content: bytes) -> list[dict[str, Any]]:
    """Return the servers in the file. Raises CollectorFailed."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CollectorFailed("error", f"not JSON: {error}") from error
    if not _has_shape(data, _FILE) or data["version"] != VERSION:
        raise CollectorFailed("error", f"not a file of version {VERSION}")
    for server in data["servers"]:
        if not _has_shape(server, _SERVER) or not _has_shape(
            server["changes"], dict.fromkeys(_RESULTS, _whole)
        ):
            raise CollectorFailed("error", "malformed server entry")
        if not all(_has_shape(one, _TOGGLE) for one in server["toggles"]):
            raise CollectorFailed("error", "malformed toggle entry")
    servers: list[dict[str, Any]] = data["servers"]
    return servers


def _has_shape(value: Any, shape: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Return whether the value is a mapping with exactly these keys, and each value passes its check."""
    return (
        isinstance(value, dict)
        and value.keys() == shape.keys()
        and all(fits(value[name]) for name, fits in shape.items())
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()  # a lone surrogate is not printable


def _list(value: Any) -> bool:
    return isinstance(value, list)


_FILE: Final[Mapping[str, Callable[[Any], bool]]] = {"version": _whole, "written_at": _time, "servers": _list}
_SERVER: Final[Mapping[str, Callable[[Any], bool]]] = {
    "pid": _whole, "start_time": _whole, "socket": lambda value: value is None or isinstance(value, str),
    "changes": lambda value: isinstance(value, dict), "toggles": _list,
}  # fmt: skip
_TOGGLE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "id": _text, "toggle": _text, "value": _text, "way": lambda value: value in ("sql", "memory"),
    "since": _time, "until": lambda value: value is None or _time(value), "who": _text,
    "unfinished": lambda value: isinstance(value, bool),
}  # fmt: skip
