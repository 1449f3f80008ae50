"""What of ours the kernel still has and nobody holds any more: BPF programs, and breakpoints in a server."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from innoscope.probes.catalog import default_catalog
from innoscope.probes.source import CALIBRATION
from servers import ensure_packages

#: The names that the programs in probes/snapshot, probes/profile and probes/trace have.
_OURS: Final = ("snapshot", "on_tick", "on_switch", "on_wakeup", "trace_enter", "trace_leave")
#: What the kernel keeps of a program's name.
_KEPT: Final = 15
_HELD = re.compile(r"^prog_id:\s*(\d+)$", re.MULTILINE)
#: The kernel takes probes off one after the other, 10 ms each when quiet and 85 ms under load, in the
#: background; a sensor of this suite may have 50 on each of 8 servers.
_PATIENCE_S = 60
_PAGE: Final = 4096


def orphans() -> set[int]:
    """Ids of our programs that outlived their process; several innoscopes may be at work on this machine."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := orphans_now():
        if time.monotonic() > deadline:
            return left
        time.sleep(0.1)
    return set()


def orphans_now() -> set[int]:
    """Without waiting for the kernel."""
    return _loaded() - _held()


def breakpoints(pid: int) -> set[tuple[str, int]]:
    """(mapping, offset in its file) of code that is not the file's, and that nobody probes or will mend.

    Other innoscopes may have probes on the same server. Who is closing them is not in ``probed`` any more,
    but in the kernel until they are off.
    """
    changed = _changed(pid)
    left = changed - probed(pid) if changed else changed
    return set() if left and _being_closed() else left


def probed(pid: int) -> set[tuple[str, int]]:
    """Where somebody's perf events are; ours name the file by its mapping."""
    events = (event for event in _bpftool("perf") if event["fd_type"].startswith("u"))
    paths = ((Path(event["filename"]), event["offset"]) for event in events)
    return {(path.name, offset) for path, offset in paths if path.parent == Path(f"/proc/{pid}/map_files")}


def _loaded() -> set[int]:
    names = {*_OURS, *(f"{name}_{at}" for name in _probes() for at in ("enter", "leave"))}
    kept = {name[:_KEPT] for name in names}
    return {program["id"] for program in _bpftool("prog") if program.get("name", "")[:_KEPT] in kept}


def _probes() -> set[str]:
    return {CALIBRATION, *default_catalog().probes}


def _held() -> set[int]:
    """Program ids of all descriptors of programs, links and iterators on this machine."""
    held = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if "bpf" in str(descriptor.readlink()):
                text = (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text()
                held |= set(map(int, _HELD.findall(text)))
        except OSError:  # closed in the meantime
            continue
    return held


def _being_closed() -> bool:
    """Whether a thread of this machine is taking off a probe."""
    for stack in Path("/proc").glob("[0-9]*/task/[0-9]*/stack"):
        try:
            if "perf_event_release_kernel" in stack.read_text():
                return True
        except OSError:  # it has ended
            continue
    return False


def _bpftool(what: str) -> list[dict[str, Any]]:
    ensure_packages(["bpftool"])
    shown = subprocess.run(["bpftool", "--json", what, "show"], capture_output=True, text=True, check=True)
    return list(json.loads(shown.stdout))


def _changed(pid: int) -> set[tuple[str, int]]:
    """Bytes of code that differ from those of the mapped file."""
    found = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, skipped, _, inode, *_ = line.split()
            if "x" not in rights or inode == "0":
                continue
            start, end = (int(text, 16) for text in where.split("-"))
            mapping, offset = f"{start:x}-{end:x}", int(skipped, 16)
            memory.seek(start)
            code = memory.read(end - start)
            with Path(f"/proc/{pid}/map_files/{mapping}").open("rb") as file:
                file.seek(offset)
                meant = file.read(end - start).ljust(end - start, b"\0")
            found |= {(mapping, offset + place) for place in _differences(code, meant)}
    return found


def _differences(one: bytes, other: bytes) -> set[int]:
    """Places where two equally long strings differ, found by the page: Python is slow at bytes."""
    pages = (
        page for page in range(0, len(one), _PAGE) if one[page : page + _PAGE] != other[page : page + _PAGE]
    )
    return {
        place
        for page in pages
        for place in range(page, min(page + _PAGE, len(one)))
        if one[place] != other[place]
    }
