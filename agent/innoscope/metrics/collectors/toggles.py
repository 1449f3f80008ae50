"""Which of the server's settings were changed by hand: from the file that ``innoscope toggle`` leaves.

Reading that file is all that the agent has to do with changes; what makes them it cannot even import.
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
#: Toggles of one server that are told, the newest ones; the bound of the label in metrics.yaml.
MOST: Final = 12
_MOST_BYTES: Final = 256 << 10
_TEXT_MOST: Final = 80  # characters of a label's value
_RESULTS: Final = ("done", "undone", "failed")


class TogglesFile:
    """The file, read once for all servers of a gathering."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or status_path()
        self._servers: list[dict[str, Any]] = []
        self._reason: str | None = None

    def read(self) -> None:
        """Read it as it is now. One that is not there says that nothing was ever changed; never raises."""
        try:
            self._servers, self._reason = _parse(_content(self._path)), None
        except FileNotFoundError:
            self._servers, self._reason = [], None
        except OSError as error:
            self._servers, self._reason = [], f"rights: cannot read {self._path}: {error.strerror}"
        except CollectorFailed as error:
            self._servers, self._reason = [], f"{error.reason}: {self._path}: {error.words}"

    def outcome(self, target: Target) -> Outcome:
        """What it says of one server."""
        began = time.monotonic()
        samples: tuple[Sample, ...] = ()
        for server in self._servers:
            if (server["pid"], server["start_time"]) == (target.pid, target.start_time):
                samples = tuple(_samples(server))
        return Outcome(NAME, self._reason is None, time.monotonic() - began, samples, self._reason)


def _samples(server: Mapping[str, Any]) -> Iterator[Sample]:
    for result in _RESULTS:
        yield Sample("toggle_changes", server["changes"][result], (result,))
    told = sorted(server["toggles"], key=lambda one: one["since"])[-MOST:]
    yield Sample("toggle_unfinished_changes", sum(one["unfinished"] for one in told))
    for one in told:
        toggle = one["toggle"][:_TEXT_MOST]
        yield Sample("toggle_in_force", 1, (toggle, one["way"]))
        yield Sample("toggle_since_timestamp_seconds", one["since"], (toggle,))
        if one["until"] is not None:
            yield Sample("toggle_until_timestamp_seconds", one["until"], (toggle,))
        yield Sample("toggle_info", 1, (toggle, one["value"][:_TEXT_MOST], one["who"][:_TEXT_MOST]))


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & stat.S_IWOTH:
            raise CollectorFailed("error", "not a file, or everybody may write to it")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise CollectorFailed("error", "too large")
    return content


def _parse(content: bytes) -> list[dict[str, Any]]:
    """The servers that it tells of. Raises CollectorFailed."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CollectorFailed("error", f"not JSON: {error}") from error
    if not _is(data, _FILE) or data["version"] != VERSION:
        raise CollectorFailed("error", f"not a file of version {VERSION}")
    for server in data["servers"]:
        if not _is(server, _SERVER) or not _is(server["changes"], dict.fromkeys(_RESULTS, _whole)):
            raise CollectorFailed("error", "a server in it is not what it should be")
        if not all(_is(one, _TOGGLE) for one in server["toggles"]):
            raise CollectorFailed("error", "a toggle in it is not what it should be")
    servers: list[dict[str, Any]] = data["servers"]
    return servers


def _is(value: Any, shape: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether it is a mapping with just these keys, and values that fit."""
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
    return isinstance(value, str) and value.isprintable()  # half of a surrogate pair is not


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
