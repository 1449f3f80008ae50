"""Find what Innoscope left in the kernel: BPF programs without an owner, and breakpoints in a server."""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope.probes.c_source import CALIBRATION
from innoscope.probes.catalog import default_catalog
from servers import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCES: Final = Path(__file__).parents[2] / "probes"
#: A program in a source file that is compiled when Innoscope is built.
_PROGRAM = re.compile(r"^SEC\(.*\)\nint (\w+)\(", re.MULTILINE)
#: Name of the program with which uprobe_check.rs tests a method of attaching probes.
_TRIAL: Final = "try_out"
#: Maximum length of a program's name in bytes; the kernel truncates longer names.
_NAME_LENGTH: Final = 15
#: Kernel functions that detach a perf event or a link.
_CLOSING = re.compile(r"\b(perf_event_release_kernel|bpf_uprobe_multi_link_release)\b")
_OFFSET = re.compile(r"^\d+\s+0x([0-9a-f]+)\s+0x", re.MULTILINE)
_HELD = re.compile(r"^prog_id:\s*(\d+)$", re.MULTILINE)
#: Maximum seconds to wait until the kernel has detached all probes. The kernel detaches them one at a time in
#: the background: in 10 ms each when idle, and in 85 ms under load. A sensor in these tests may have 50
#: probes on each of 8 servers.
_PATIENCE_S = 60
_PAGE: Final = 4096


def orphans() -> set[int]:
    """Return the ids of BPF programs that no process has open, not even another Innoscope on this machine."""
    deadline = time.monotonic() + _PATIENCE_S
    left = orphans_now()
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= orphans_now()  # other tests continually leave programs that the kernel is about to free
    return left


def orphans_now() -> set[int]:
    """Return the same ids as ``orphans``, without waiting for the kernel to finish its cleanup."""
    return _loaded() - _held()


def breakpoints(pid: int) -> set[tuple[str, int]]:
    """Return the (mapping, offset in its file) of changed code that belongs to no probe.

    Other Innoscope processes may have probes on the same server. ``probed`` does not list probes that are
    being closed, although their breakpoints remain until the kernel has detached them.
    """
    changed = _changed(pid)
    left = changed - probed(pid) if changed else changed
    return set() if left and _being_closed() else left


def altered(pid: int) -> set[tuple[str, int]]:
    """Return the same locations as ``breakpoints``, and the locations of probes that are being detached."""
    changed = _changed(pid)
    return changed - probed(pid) if changed else changed


def probed(pid: int) -> set[tuple[str, int]]:
    """Return the (mapping, offset) of all uprobes in a process, whether perf events or links.

    Innoscope's perf events name the file by the path of its mapping.
    """
    events = (event for event in _bpftool("perf") if event["fd_type"].startswith("u"))
    paths = ((Path(event["filename"]), event["offset"]) for event in events)
    by_event = {
        (path.name, offset) for path, offset in paths if path.parent == Path(f"/proc/{pid}/map_files")
    }
    return by_event | {place for text in _bpf_descriptors() for place in _linked(text, pid)}


def _linked(text: str, pid: int) -> Iterator[tuple[str, int]]:
    """Yield the (mapping, offset) pairs of a link in that process, from the link's /proc/PID/fdinfo."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if fields.get("link_type", "").strip() != "uprobe_multi" or int(fields["pid"]) != pid:
        return
    name = fields["path"].strip().rpartition("/")[2].removesuffix(" (deleted)")
    for offset in (int(found, 16) for found in _OFFSET.findall(text)):
        for start, end, skipped, path in _code(pid):
            if path.rpartition("/")[2] == name and skipped <= offset < skipped + end - start:
                yield f"{start:x}-{end:x}", offset


def _loaded() -> set[int]:
    names = {
        _TRIAL,
        *compiled_programs(),
        *(f"{name}_{at}" for name in _probes() for at in ("enter", "leave")),
    }
    truncated = {name[:_NAME_LENGTH] for name in names}
    return {
        program["id"] for program in _bpftool("prog") if program.get("name", "")[:_NAME_LENGTH] in truncated
    }


def compiled_programs() -> set[str]:
    """Return the names of the programs that are compiled when Innoscope is built."""
    return {name for path in _SOURCES.rglob("*.[ch]") for name in _PROGRAM.findall(path.read_text())}


def _probes() -> set[str]:
    return {CALIBRATION, *default_catalog().probes}


def _held() -> set[int]:
    """Return the ids of the programs that any process has open, directly or by a link or iterator."""
    return {int(held) for text in _bpf_descriptors() for held in _HELD.findall(text)}


def _bpf_descriptors() -> Iterator[str]:
    """Yield the fdinfo of each BPF descriptor on this machine."""
    for descriptor in _in_processes("fd/*"):
        try:
            if "bpf" in str(descriptor.readlink()):
                yield (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text()
        except OSError:  # the descriptor has been closed
            continue


def _being_closed() -> bool:
    """Return whether any thread on this machine is detaching a probe."""
    for stack in _in_processes("task/[0-9]*/stack"):
        try:
            if _CLOSING.search(stack.read_text()):
                return True
        except OSError:  # the thread has exited
            continue
    return False


def _bpftool(what: str) -> list[dict[str, Any]]:
    ensure_packages(["bpftool"])
    shown = subprocess.run(["bpftool", "--json", what, "show"], capture_output=True, text=True, check=True)
    return list(json.loads(shown.stdout))


def _changed(pid: int) -> set[tuple[str, int]]:
    """Return the (mapping, offset) of code that differs from the mapped file."""
    found = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, end, offset, _ in _code(pid):
            mapping = f"{start:x}-{end:x}"
            memory.seek(start)
            code = memory.read(end - start)
            with Path(f"/proc/{pid}/map_files/{mapping}").open("rb") as file:
                file.seek(offset)
                expected = file.read(end - start).ljust(end - start, b"\0")
            found |= {(mapping, offset + place) for place in _differences(code, expected)}
    return found


def _code(pid: int) -> Iterator[tuple[int, int, int, str]]:
    """Yield the executable mappings of files: start, end, offset in the file, and path."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, rights, offset, _, inode, *path = line.split(maxsplit=5)
        if "x" in rights and inode != "0":
            start, end = (int(text, 16) for text in where.split("-"))
            yield start, end, int(offset, 16), path[0].removesuffix(" (deleted)")


def _differences(one: bytes, other: bytes) -> set[int]:
    """Return the offsets at which two byte strings of equal length differ. Compare pages first, for speed."""
    pages = (
        page for page in range(0, len(one), _PAGE) if one[page : page + _PAGE] != other[page : page + _PAGE]
    )
    return {
        place
        for page in pages
        for place in range(page, min(page + _PAGE, len(one)))
        if one[place] != other[place]
    }


def _in_processes(pattern: str) -> Iterator[Path]:
    """Yield matching files of all processes on this machine; skip processes that exit during the search."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield from process.glob(pattern)
