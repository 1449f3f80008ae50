"""Results of earlier work, cached in files that only we can write: CPU time is the server's.

Where no such file can be written, the work is done each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIGEST_BYTES: Final = hashlib.sha256().digest_size
#: For a user without a home: only root could make this folder, and root has /var/cache.
_NOWHERE: Final = Path("/nonexistent")


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return ``$XDG_CACHE_HOME/innoscope``, else root's /var/cache/innoscope, else ~/.cache/innoscope."""
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_CACHE_HOME")
    if home:
        return Path(home) / "innoscope"
    if os.geteuid() == 0:
        return Path("/var/cache/innoscope")
    try:
        return Path.home() / ".cache/innoscope"
    except RuntimeError:  # a user that the system does not know
        return _NOWHERE


def cache_key(*inputs: str) -> str:
    """Return a file name for the result of these inputs, and of this version of Innoscope."""
    return hashlib.sha256(json.dumps((__version__, *inputs)).encode()).hexdigest()


class Cache:
    """The results of one kind: files in the folder ``name`` of ``root``, by default of the cache folder.

    Beyond ``most`` files the oldest are removed.
    """

    def __init__(self, name: str, most: int, root: Path | None = None) -> None:
        self._name, self._most, self._root = name, most, root

    def read(self, key: str) -> bytes | None:
        """Return what was written; None if it is missing or damaged, or others could have written it."""
        file = self._folder / key
        try:
            with file.open("rb") as opened:
                if not all(map(_is_ours, (os.fstat(opened.fileno()), file.parent.stat()))):
                    return None
                data = opened.read()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def write(self, key: str, content: bytes) -> None:
        """Write the whole file or none; do nothing where nothing can be written."""
        folder = self._folder
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("wb", dir=folder, prefix=".new-", delete=False) as new:
                new.write(hashlib.sha256(content).digest() + content)
            Path(new.name).replace(folder / key)
            self._remove_oldest()

    def remove(self, key: str) -> bool:
        """Remove one result, and return whether there was one."""
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()
            return True
        return False

    @property
    def _folder(self) -> Path:
        return (self._root or cache_folder()) / self._name

    def _remove_oldest(self) -> None:
        oldest_first = sorted(self._folder.iterdir(), key=lambda each: each.stat().st_mtime)
        for each in oldest_first[: -self._most]:
            each.unlink(missing_ok=True)


def _is_ours(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022
