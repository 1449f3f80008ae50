"""Store the agent's incident files with an index of their contents, and serve the list and the files."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.common.typed import decode_json
from innoscope.daemon.http.answers import DATA_HEADERS, as_json, compressed
from innoscope.daemon.http.roles import Role
from innoscope.daemon.http.server import Request, Response, plain
from innoscope.daemon.push.notifications import IncidentNotice
from innoscope.diagnose.watch.folder import FolderLimits, IncidentFolder

if TYPE_CHECKING:
    from innoscope.daemon.agent.config import Watch
    from innoscope.diagnose.verdict import Verdict
    from innoscope.diagnose.watch.loop import Stalled

_log = logging.getLogger(__name__)

SCHEMA: Final = 1
#: Name of the index, which lists the server, trigger and first finding of each incident file, and whether it
#: was reported and uploaded. If the index is lost, only the names, times and sizes of the files are known.
_INDEX: Final = "incidents.json"
_MAX_INDEX_BYTES: Final = 1 << 20
#: The state of an incident that was uploaded.
_SENT: Final = "sent"


class Incidents:
    """Manages the directory with the incident files of all servers. Thread-safe.

    If ``notify`` is true, each new incident is marked as due to be reported.
    """

    def __init__(self, watch: Watch, *, notify: bool = False) -> None:
        self._notify = notify
        self._folder = IncidentFolder(Path(watch.directory), FolderLimits(watch.max_files, watch.max_bytes))
        self._lock = threading.Lock()
        self._about = _index(self._folder.folder / _INDEX)

    def prepare(self) -> None:
        """Create the directory for incident files, and check that it is writable. Raise CannotWrite if not.

        The index is read again, because the directory may have been mounted since the last read.
        """
        self._folder.prepare()
        with self._lock:
            self._about = _index(self._folder.folder / _INDEX) | self._about

    def put(self, server: str, stalled: Stalled) -> tuple[Path, Verdict]:
        """Write a capture to a file. Return the path and the verdict. Raise CannotWrite if that fails."""
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
                "blocker": first.blockers[0].words if first and first.blockers else None,
                **({"notification": "due"} if self._notify else {}),
            }
            names = {file.name for file in self._folder.incidents()}
            self._about = {name: about for name, about in self._about.items() if name in names}
            self._write_index()
        return path, verdict

    def due(self) -> list[IncidentNotice]:
        """Return the incidents that are due to be reported, oldest first."""
        with self._lock:
            if not any(about.get("notification") == "due" for about in self._about.values()):
                return []
        rows = [row for row in self.rows() if row.get("notification") == "due"]
        return [
            IncidentNotice(
                row["file"], row["server"], row["at"], row["trigger"], row["finding"], row["title"],
                row.get("blocker"),
            )
            for row in reversed(rows)
        ]  # fmt: skip

    def set_notified(self, name: str, outcome: str) -> None:
        """Record that an incident was reported (``sent``), or that the receiver rejected it (``refused``)."""
        with self._lock:
            if name in self._about:  # otherwise, the file has been deleted
                self._about[name]["notification"] = outcome
                self._write_index()

    def not_uploaded(self) -> list[str]:
        """Return the names of the files that are not marked as uploaded, oldest first."""
        names = [file.name for file in reversed(self._folder.incidents())]
        with self._lock:
            return [name for name in names if self._about.get(name, {}).get("upload") != _SENT]

    def set_uploaded(self, name: str) -> None:
        """Record that a file was uploaded."""
        with self._lock:
            self._about.setdefault(name, {})["upload"] = _SENT
            self._write_index()

    def read(self, name: str) -> bytes | None:
        """Return the contents of an incident file; None if it has been deleted. Raise OSError on failure."""
        try:
            return (self._folder.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def answer(self, request: Request) -> Response:
        """Serve ``/api/incidents``: the list, newest first (``?server=``), or one file (``?file=``)."""
        if why := request.client.why_not(Role.STACKS if "file" in request.query else Role.FINDINGS):
            return plain(why, HTTPStatus.FORBIDDEN)
        if "file" in request.query:
            return self._file(request.query["file"])
        wanted = request.query.get("server")
        rows = [one for one in self.rows() if wanted is None or one.get("server") == wanted]
        return compressed(request, as_json({"schema": SCHEMA, "incidents": rows}))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per incident file, newest first: time, name, size and index entry."""
        with self._lock:
            about = dict(self._about)
        return [
            {"at": round(file.at, 3), **about.get(file.name, {}), "file": file.name, "bytes": file.bytes}
            for file in self._folder.incidents()
        ]

    def _file(self, name: str) -> Response:
        """Serve an incident file. Only names of existing incident files are accepted, not paths."""
        names = {file.name for file in self._folder.incidents()}
        if name not in names:
            return plain("no such file; /api/incidents lists all files", HTTPStatus.NOT_FOUND)
        try:
            body = (self._folder.folder / name).read_bytes()
        except OSError as error:
            return plain(f"cannot read the file: {error.strerror}", HTTPStatus.INTERNAL_SERVER_ERROR)
        headers = {**DATA_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(body, "application/gzip", headers=headers)

    def _write_index(self) -> None:
        text = sanitize.dumps(self._about)
        partial = self._folder.folder / f".{_INDEX}.part"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o600)
            partial.replace(self._folder.folder / _INDEX)
        except OSError as error:
            _log.warning("cannot write the index of incidents", extra={"error": error.strerror})


def _index(path: Path) -> dict[str, dict[str, Any]]:
    """Read the index of incident files. Return an empty one if it is missing, too large or malformed."""
    with suppress(OSError, BadFile):
        if path.stat().st_size <= _MAX_INDEX_BYTES:
            return decode_json(path.read_bytes(), dict[str, dict[str, Any]], path)
    return {}
