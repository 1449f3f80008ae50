"""Report the settings that ``innoscope toggle`` has changed, from the status file that it writes.

The agent only reads this file and never imports the code that makes changes.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from innoscope.common import schema
from innoscope.common.errors import BadFile
from innoscope.common.samples import Outcome, Sample
from innoscope.common.toggle_status import status_path
from innoscope.metrics.collectors.errors import CollectorFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.target.model import Target

NAME: Final = "toggles"
#: Maximum number of toggles to report per server (the newest); equal to the label's bound in metrics.yaml.
MOST: Final = 12
_MOST_BYTES: Final = 256 << 10
_MAX_TEXT: Final = 80  # maximum characters of a label value


_Whole: TypeAlias = Annotated[int, Meta(ge=0)]


class _Toggle(schema.Entry, frozen=True):
    id: str
    toggle: str
    value: str
    way: Literal["sql", "memory"]
    since: float
    until: float | None
    who: str
    unfinished: bool

    def __post_init__(self) -> None:
        if not all(text.isprintable() for text in (self.id, self.toggle, self.value, self.who)):
            raise ValueError("not printable")


class _Changes(schema.Entry, frozen=True):
    done: _Whole
    undone: _Whole
    failed: _Whole


class _Server(schema.Entry, frozen=True):
    pid: _Whole
    start_time: _Whole
    socket: str | None
    changes: _Changes
    toggles: tuple[_Toggle, ...]


class _File(schema.Entry, frozen=True):
    version: Literal[1]  # toggle_status.VERSION
    written_at: float
    servers: tuple[_Server, ...]


class TogglesFile:
    """The status file, read once per collection for all servers."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or status_path()
        self._servers: tuple[_Server, ...] = ()
        self._reason: str | None = None

    def read(self) -> None:
        """Read the file; never raise. A missing file means that no setting was changed."""
        try:
            file = schema.decode_json(_content(self._path), _File, self._path)
            self._servers, self._reason = file.servers, None
        except FileNotFoundError:
            self._servers, self._reason = (), None
        except OSError as error:
            self._servers, self._reason = (), f"rights: cannot read {self._path}: {error.strerror}"
        except BadFile as error:
            self._servers, self._reason = (), f"error: {error.what}"
        except CollectorFailed as error:
            self._servers, self._reason = (), f"{error.reason}: {self._path}: {error.words}"

    def outcome(self, target: Target) -> Outcome:
        """Return the outcome of the collector for one server."""
        began = time.monotonic()
        samples: tuple[Sample, ...] = ()
        for server in self._servers:
            if (server.pid, server.start_time) == (target.pid, target.start_time):
                samples = tuple(_samples(server))
        return Outcome(NAME, self._reason is None, time.monotonic() - began, samples, self._reason)


def _samples(server: _Server) -> Iterator[Sample]:
    yield Sample("toggle_changes", server.changes.done, ("done",))
    yield Sample("toggle_changes", server.changes.undone, ("undone",))
    yield Sample("toggle_changes", server.changes.failed, ("failed",))
    newest = sorted(server.toggles, key=lambda one: one.since)[-MOST:]
    yield Sample("toggle_unfinished_changes", sum(one.unfinished for one in newest))
    for one in newest:
        toggle = one.toggle[:_MAX_TEXT]
        yield Sample("toggle_in_force", 1, (toggle, one.way))
        yield Sample("toggle_since_timestamp_seconds", one.since, (toggle,))
        if one.until is not None:
            yield Sample("toggle_until_timestamp_seconds", one.until, (toggle,))
        yield Sample("toggle_info", 1, (toggle, one.value[:_MAX_TEXT], one.who[:_MAX_TEXT]))


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
