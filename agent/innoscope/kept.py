"""What was worked out once, kept in files that only we can write: CPU time is the server's.

Where there is no place for such files all of it is worked out each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIGEST_BYTES: Final = hashlib.sha256().digest_size
#: Where only root could write, who has another place.
_NOWHERE: Final = Path("/nonexistent")


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/innoscope``; without it, root has /var/cache/innoscope, others ~/.cache/innoscope."""
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


def key(*made_of: str) -> str:
    """A name for what this version of Innoscope makes of these: another one where any of them differs."""
    return hashlib.sha256(json.dumps((__version__, *made_of)).encode()).hexdigest()


class Shelf:
    """The files of one kind, in a folder of the cache; the oldest ones beyond ``most`` are removed."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most

    def read(self, name: str) -> bytes | None:
        """What was written; None where it is not there, was damaged, or others could have written it."""
        file = self._folder / name
        try:
            with file.open("rb") as opened:
                if not all(map(_is_ours, (os.fstat(opened.fileno()), file.parent.stat()))):
                    return None
                data = opened.read()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def write(self, name: str, content: bytes) -> None:
        """Whole or not at all; nothing where nothing can be written."""
        import tempfile

        folder = self._folder
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("wb", dir=folder, prefix=".new-", delete=False) as new:
                new.write(hashlib.sha256(content).digest() + content)
            Path(new.name).replace(folder / name)
            self._make_room()

    def remove(self, name: str) -> bool:
        """Whether there was something."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()
            return True
        return False

    @property
    def _folder(self) -> Path:
        return cache_folder() / self._name

    def _make_room(self) -> None:
        oldest_first = sorted(self._folder.iterdir(), key=lambda each: each.stat().st_mtime)
        for each in oldest_first[: -self._most]:
            each.unlink(missing_ok=True)


def _is_ours(told: os.stat_result) -> bool:
    return told.st_uid == os.geteuid() and not told.st_mode & 0o022
