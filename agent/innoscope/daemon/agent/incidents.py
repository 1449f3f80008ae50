"""The agent's incident files: what is in each, told without reading it, and the files themselves."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope.common import sanitize
from innoscope.daemon.agent.profiles import NOT_TRUSTED
from innoscope.daemon.http.answers import DATA_HEADERS, as_json, packed
from innoscope.daemon.http.server import Request, Response, plain
from innoscope.diagnose.watch.folder import Bounds, IncidentFolder

if TYPE_CHECKING:
    from innoscope.daemon.agent.config import Watch
    from innoscope.diagnose.verdict import Verdict
    from innoscope.diagnose.watch.loop import Stalled

_log = logging.getLogger(__name__)

SCHEMA: Final = 1
#: What the files are about. It may be lost: the list is shorter in words then.
_INDEX: Final = "incidents.json"
_MOST_INDEX_BYTES: Final = 1 << 20


class Incidents:
    """The folder, and what was put there by whom. Safe to use from several threads."""

    def __init__(self, watch: Watch) -> None:
        self._folder = IncidentFolder(Path(watch.directory), Bounds(watch.max_files, watch.max_bytes))
        self._lock = threading.Lock()
        self._about = _index(self._folder.folder / _INDEX)

    def prepare(self) -> None:
        """Make the folder. Raises CannotWrite."""
        self._folder.prepare()

    def put(self, server: str, stalled: Stalled) -> tuple[Path, Verdict]:
        """Write a capture. Raises CannotWrite."""
        capture, verdict = stalled.capture()
        path = self._folder.save(capture)
        first = verdict.findings[0] if verdict.findings else None
        with self._lock:
            self._about[path.name] = {
                "server": server,
                "at": round(stalled.evidence.begun, 3),
                "trigger": capture.trigger,
                "finding": first.name if first else None,
                "title": first.title if first else None,
                "score": round(first.score, 1) if first else None,
            }
            names = {kept.name for kept in self._folder.incidents()}
            self._about = {name: about for name, about in self._about.items() if name in names}
            text = sanitize.dumps(self._about)
        self._write_index(text)
        return path, verdict

    def answer(self, request: Request) -> Response:
        """``/api/incidents?server=``: the files, the newest first; ``?file=``: one of them."""
        if not request.trusted:
            return plain(NOT_TRUSTED, HTTPStatus.FORBIDDEN)
        if "file" in request.query:
            return self._file(request.query["file"])
        wanted = request.query.get("server")
        rows = [one for one in self.rows() if wanted is None or one.get("server") == wanted]
        return packed(request, as_json({"schema": SCHEMA, "incidents": rows}))

    def rows(self) -> list[dict[str, Any]]:
        """What is known of each file."""
        with self._lock:
            about = dict(self._about)
        return [
            {"at": round(kept.at, 3), **about.get(kept.name, {}), "file": kept.name, "bytes": kept.bytes}
            for kept in self._folder.incidents()
        ]

    def _file(self, name: str) -> Response:
        """Only what is in the list: no path is ever made of what a client asks for."""
        there_are = {kept.name for kept in self._folder.incidents()}
        if name not in there_are:
            return plain("there is no such file: /api/incidents lists them", HTTPStatus.NOT_FOUND)
        try:
            body = (self._folder.folder / name).read_bytes()
        except OSError as error:
            return plain(f"cannot read it: {error.strerror}", HTTPStatus.INTERNAL_SERVER_ERROR)
        headers = {**DATA_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(body, "application/gzip", headers=headers)

    def _write_index(self, text: str) -> None:
        partial = self._folder.folder / f".{_INDEX}.part"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o600)
            partial.replace(self._folder.folder / _INDEX)
        except OSError as error:
            _log.warning("no index of incidents", extra={"error": error.strerror})


def _index(path: Path) -> dict[str, dict[str, Any]]:
    """What was known of files; nothing where it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= _MOST_INDEX_BYTES:
            told = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(told, dict):
                return {name: about for name, about in told.items() if isinstance(about, dict)}
    return {}
