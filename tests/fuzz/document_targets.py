"""Targets that read documents: the sensor's requests and replies, recordings, journals, InnoDB's monitor."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from innoscope.common.errors import InnoscopeError
from innoscope.daemon.protocol import messages, stack_encoding
from innoscope.daemon.sensor.main import Sensor, SensorSettings
from innoscope.daemon.sensor.watch import ServerSlot
from innoscope.diagnose.incident import redaction
from innoscope.metrics.collectors import monitor, sql_catalog
from innoscope.metrics.collectors.sql_plan import Answers
from innoscope.sampling.profile_history import ClassifiedStack, ProfileHistory
from innoscope.sampling.recording import Recording
from innoscope.sampling.snapshot_history import CLIENT
from innoscope.toggles.journal import Journal
from unit.session_samples import START
from unit.snapshots import mixed, target

#: Calls that do not read the host's state, so that their CPU time depends only on the input.
_CALLS: Final = frozenset({"hello", "profiles", "samples", "snapshots", "probes"})
#: Number of snapshots of a recording to parse.
_SNAPSHOTS: Final = 3
#: The name of the server whose history the sensor has.
NAME: Final = "3306"
#: Number of snapshots in this history: one per second from START.
_SECONDS: Final = 20


@cache
def memory_folder() -> str | None:
    """Return a directory in memory, because disks are slower; None if the host has no such directory."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


def _json(data: bytes) -> Any:
    """Return the value that ``messages.receive`` would return; None if it would reject ``data``."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


class _Watching(Sensor):
    """A sensor with the histories of one server."""

    def __init__(self) -> None:
        super().__init__(SensorSettings())
        slot = ServerSlot(target(), (), self._workers)
        threads = [
            (CLIENT, ClassifiedStack.of(one.wait, one.trust, one.frames), one) for one in mixed().threads
        ]
        for second in range(_SECONDS):
            slot.profiles.add(START + second, Counter(stack for _, stack, _ in threads))
            slot.samples.add(START + second, 1.0, threads)
            slot.snapshots.add_groups(
                START + second, [(kind, stack, [one.tid]) for kind, stack, one in threads]
            )
        self._slots[NAME] = slot


@cache
def _sensor() -> Sensor:
    return _Watching()


def requests(data: bytes) -> None:
    """Answer a client's request to the privileged sensor; ``data`` is the request's JSON."""
    request = _json(data)
    if not isinstance(request, dict) or str(request.get("call")) not in _CALLS:
        return
    try:
        reply = _sensor().handle(request)
    except InnoscopeError:
        return
    if len(json.dumps({"ok": reply})) > messages.REPLY_BYTES:
        raise AssertionError("the reply is too large")


def chunks(data: bytes) -> None:
    """Decode the profiles in a reply of the sensor, and store them; ``data`` is their JSON."""
    try:
        decoded = stack_encoding.decode_chunks(_json(data))
    except InnoscopeError:
        return
    history = ProfileHistory()
    for chunk in decoded:
        history.add_chunk(chunk)
    json.dumps(stack_encoding.encode_chunks([history.between(0, START)]), allow_nan=False)


def snapshots(data: bytes) -> None:
    """Decode the snapshots in a reply of the sensor; ``data`` is their JSON."""
    try:
        decoded = stack_encoding.decode_snapshots(_json(data))
    except InnoscopeError:
        return
    json.dumps(stack_encoding.encode_snapshots(*decoded), allow_nan=False)


def recording(data: bytes) -> None:
    """Read a recording. If the first byte is 0x80 or above, compress the other bytes first."""
    kind, rest = data[:1], data[1:]
    with tempfile.NamedTemporaryFile(dir=memory_folder()) as file:
        file.write(rest if kind < b"\x80" else gzip.compress(rest, 1))
        file.flush()
        try:
            read = Recording(Path(file.name), allow_headerless=kind > b"\xc0")
            read.at(START)
            for number in islice(range(len(read)), _SNAPSHOTS):
                read.snapshot(number)
        except InnoscopeError:
            return


@cache
def _values() -> list[sql_catalog.SqlSource]:
    """Return the catalog's sources of values in the monitor's text."""
    return [
        one for series in sql_catalog.default().entries for one in series.sources if one.kind == "monitor"
    ]


def status(data: bytes) -> None:
    """Parse and redact the text of SHOW ENGINE INNODB STATUS."""
    text = data.decode(errors="replace")
    answers = Answers(monitor=monitor.sections(text))
    for source in _values():
        answers.value(source)
    redaction.status(text)


def journal(data: bytes) -> None:
    """Read the journal of changes."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        one = Journal(Path(folder))
        one.path.write_bytes(data)
        one.path.chmod(0o600)
        try:
            entries = one.entries()
        except InnoscopeError:
            return
        for entry in entries:
            one.find(entry.id)
