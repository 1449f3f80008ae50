"""Fetch debug files from debuginfod servers, if DEBUGINFOD_URLS is set.

The cache is shared with elfutils' client (debuginfod_find_debuginfo(3)), which gdb and eu-stack use:
``<cache>/<build-id>/debuginfo``. An empty file records that the debuginfod servers do not have the debug
file; it is valid for ``cache_miss_s`` seconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import innoscope
from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope._native import ModuleInfo

TIMEOUT_S: Final = 90.0  # seconds without receiving a byte; elfutils' default for DEBUGINFOD_TIMEOUT
MISS_S: Final = 600.0  # seconds; elfutils' default for cache_miss_s
CHUNK: Final = 1 << 20
_BUILD_ID: Final = re.compile(r"(?:[0-9a-f]{2}){4,32}")
#: Symbol sources that are incomplete.
_LACKING: Final = frozenset({"dynsym", "debugdata", "none"})


class DownloadProgress(Protocol):
    """A callback for the progress of a download: file name, bytes so far, and total bytes if known."""

    def __call__(self, name: str, done: int, total: int | None, /) -> None:
        """Show the progress."""


@dataclass(frozen=True, slots=True)
class DebuginfodSettings:
    """Settings from the environment. If there are no URLs, debuginfod is disabled."""

    urls: tuple[str, ...]
    cache: Path
    timeout_s: float
    longest_s: float | None
    largest: int | None  # bytes

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> DebuginfodSettings:
        """Read DEBUGINFOD_URLS, _CACHE_PATH, _TIMEOUT, _MAXTIME, _MAXSIZE and XDG_CACHE_HOME."""
        urls = environment.get("DEBUGINFOD_URLS", "").split()
        home = environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        return cls(
            urls=tuple(url.rstrip("/") for url in urls if url.startswith(("http://", "https://"))),
            cache=Path(environment.get("DEBUGINFOD_CACHE_PATH") or f"{home}/debuginfod_client"),
            timeout_s=_number(environment.get("DEBUGINFOD_TIMEOUT")) or TIMEOUT_S,
            longest_s=_number(environment.get("DEBUGINFOD_MAXTIME")),
            largest=int(_number(environment.get("DEBUGINFOD_MAXSIZE")) or 0) or None,
        )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value > 0 else None


@dataclass(frozen=True, slots=True)
class FetchedDebugFiles:
    """The results of ``fetch``.

    ``files`` maps build-ids to paths of debug files. ``notes`` contains messages about failed downloads.
    """

    files: dict[str, str]
    notes: tuple[str, ...]


def fetch(
    modules: Iterable[ModuleInfo], settings: DebuginfodSettings, progress: DownloadProgress | None = None
) -> FetchedDebugFiles:
    """Fetch debug files for the modules that lack symbols. Server and network errors become notes.

    Ctrl-C skips the remaining downloads.
    """
    files: dict[str, str] = {}
    notes: list[str] = []
    for module in modules if settings.urls else ():
        if module.symbols_from not in _LACKING or not module.build_id or module.build_id in files:
            continue
        try:
            path = find(module.build_id, settings, Path(module.path).name, progress)
        except KeyboardInterrupt:
            notes.append("debuginfod: interrupted, the remaining files were skipped")
            break
        except (OSError, ValueError) as error:  # a hostile file can have any build-id
            notes.append(f"debuginfod: no debug file of {Path(module.path).name}: {error}")
            continue
        if path is not None:
            files[module.build_id] = str(path)
    return FetchedDebugFiles(files, tuple(notes))


def find(
    build_id: str, settings: DebuginfodSettings, name: str, progress: DownloadProgress | None = None
) -> Path | None:
    """Return the debug file of one build-id, from the cache or the debuginfod servers; None if not found.

    Raise OSError if a download fails, and ValueError if the build-id is malformed.
    """
    if not _BUILD_ID.fullmatch(build_id):  # the build-id becomes part of a path and of a URL
        raise ValueError(f"not a build-id: {build_id!r}")
    path = settings.cache / build_id / "debuginfo"
    state = _cached(path, settings)
    if state is not None:
        return path if state else None
    missing, problem = True, ""
    for url in settings.urls:
        try:
            _download(f"{url}/buildid/{build_id}/debuginfo", path, build_id, settings, name, progress)
            return path
        except HTTPError as error:
            missing &= error.code == 404
            problem = f"{url}: {error.code} {error.reason}"
        except (URLError, OSError, ValueError) as error:
            missing, problem = False, f"{url}: {getattr(error, 'reason', None) or error}"
    if missing:
        _remember_miss(path)
        return None
    raise OSError(problem)


def _cached(path: Path, settings: DebuginfodSettings) -> bool | None:
    """Return True if the file is cached, False if it is known to be missing, and None if unknown."""
    try:
        stat = path.stat()
    except OSError:
        return None
    if stat.st_size:
        return True
    try:
        patience = float((settings.cache / "cache_miss_s").read_text())
    except (OSError, ValueError):
        patience = MISS_S
    return False if time.time() - stat.st_mtime < patience else None


def _remember_miss(path: Path) -> None:
    """Write an empty file, as elfutils does. If the cache is not writable, the next run queries again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        os.utime(path)


def _download(
    url: str,
    path: Path,
    build_id: str,
    settings: DebuginfodSettings,
    name: str,
    progress: DownloadProgress | None,
) -> None:
    """Download to a temporary file beside ``path``, check it, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"debuginfo.{os.getpid()}.part")
    try:
        with _open(url, settings) as answer, partial.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdecimal() else None
            _check_size(total or 0, settings)
            started = time.monotonic()
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                _check_size(file.tell(), settings)
                if settings.longest_s and time.monotonic() - started > settings.longest_s:
                    raise OSError(f"took longer than DEBUGINFOD_MAXTIME={settings.longest_s:g} s")
                if progress:
                    progress(name, file.tell(), total)
        if total is not None and partial.stat().st_size != total:
            raise OSError("the response is incomplete")
        _check(partial, build_id)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _open(url: str, settings: DebuginfodSettings) -> Any:
    request = Request(url, headers={"User-Agent": f"innoscope/{innoscope.__version__}"})  # noqa: S310
    return urlopen(request, timeout=settings.timeout_s)  # noqa: S310 (http and https only: DebuginfodSettings.of)


def _check_size(size: int, settings: DebuginfodSettings) -> None:
    if settings.largest and size > settings.largest:
        raise OSError(f"larger than DEBUGINFOD_MAXSIZE={settings.largest:,} bytes")


def _check(path: Path, build_id: str) -> None:
    """Raise OSError if the file has another build-id: its symbol names would be wrong."""
    try:
        found = _native.elf_info(str(path)).build_id
    except _native.NativeError as error:
        raise OSError("the response is not an ELF file") from error
    if found != build_id:
        raise OSError(f"the response has another build-id ({found})")
