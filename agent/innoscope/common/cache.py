"""Cache results of earlier work in files that only the current user can write.

Expensive work is done only once, because it takes CPU time from the server. If the files cannot be written,
the work is repeated each time.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import __version__, _native

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIGEST_BYTES: Final = 32
#: Cache directory of a user without a home directory. Only root could create it, and root uses /var/cache.
_NO_FOLDER: Final = Path("/nonexistent")


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return ``$XDG_CACHE_HOME/innoscope``, else ~/.cache/innoscope, or for root /var/cache/innoscope.

    For a user without a home directory, return a path that does not exist and cannot be created.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_CACHE_HOME")
    if home:
        return Path(home) / "innoscope"
    if os.geteuid() == 0:
        return Path("/var/cache/innoscope")
    try:
        return Path.home() / ".cache/innoscope"
    except RuntimeError:  # the user has no entry in the password database
        return _NO_FOLDER


def cache_key(*inputs: str) -> str:
    """Return a file name derived from the given inputs and the version of Innoscope."""
    return _digest(json.dumps((__version__, *inputs)).encode()).hex()


class Cache:
    """Cached results of one kind: files in the directory ``name`` below ``root`` (default: cache_folder()).

    If there are more than ``max_files`` files, the oldest are removed.
    """

    def __init__(self, name: str, max_files: int, root: Path | None = None) -> None:
        self._name, self._max_files, self._root = name, max_files, root

    def read(self, key: str) -> bytes | None:
        """Return the cached content; None if it is missing or damaged, or if other users can write it."""
        file = self._folder / key
        try:
            with file.open("rb") as opened:
                if not all(map(_only_we_can_write, (os.fstat(opened.fileno()), file.parent.stat()))):
                    return None
                data = opened.read()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if _digest(content) == digest else None

    def write(self, key: str, content: bytes) -> None:
        """Store a result by writing its file atomically. Errors, such as a full disk, are ignored."""
        folder = self._folder
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = folder / f".new-{os.urandom(8).hex()}"
            new.touch(mode=0o600, exist_ok=False)
            new.write_bytes(_digest(content) + content)
            new.replace(folder / key)
            self._remove_oldest()

    def remove(self, key: str) -> bool:
        """Remove a cached result. Return whether a file was removed."""
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()
            return True
        return False

    @property
    def _folder(self) -> Path:
        return (self._root or cache_folder()) / self._name

    def _remove_oldest(self) -> None:
        oldest_first = sorted(self._folder.iterdir(), key=lambda each: each.stat().st_mtime)
        for each in oldest_first[: -self._max_files]:
            each.unlink(missing_ok=True)


def _digest(content: bytes) -> bytes:
    return _native.blake2s(content, size=_DIGEST_BYTES)


def _only_we_can_write(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
