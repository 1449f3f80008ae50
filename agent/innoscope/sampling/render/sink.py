"""Write a report to standard output, or atomically to a file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from innoscope.common import console, sanitize
from innoscope.common.errors import CannotWrite

if TYPE_CHECKING:
    from types import TracebackType


class Stdout:
    """Standard output. Each line is flushed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        console.flush()

    def line(self, text: str) -> None:
        """Write one line."""
        console.line(text)

    def raw(self, data: bytes) -> None:
        """Write bytes."""
        console.raw(data)


class AtomicFile:
    """A file that is replaced atomically on success. After an error, the old file remains.

    A device or a named pipe is written directly.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.realpath(path))
        self._in_place = self._path.exists() and not self._path.is_file()  # /dev/null or a named pipe
        name = f".{self._path.name}.{secrets.token_hex(4)}.part"
        self._partial = self._path if self._in_place else self._path.with_name(name)
        flags = os.O_WRONLY | (0 if self._in_place else os.O_CREAT | os.O_EXCL)
        try:
            self._file: IO[bytes] = os.fdopen(os.open(self._partial, flags, 0o666), "wb")
        except OSError as error:
            raise _cannot_write(path, error) from error

    def line(self, text: str) -> None:
        """Write one line as UTF-8."""
        self.raw(sanitize.line(text).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        """Write bytes."""
        try:
            self._file.write(data)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None and not self._in_place:
                self._partial.replace(self._path)
        except OSError as error:
            if kind is None:
                raise _cannot_write(self._path, error) from error
        finally:
            if not self._in_place:
                self._partial.unlink(missing_ok=True)


def _cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(f"cannot write {path}: {error.strerror}", remedy="choose another file: --output FILE")


def open_sink(path: Path | None) -> Stdout | AtomicFile:
    """Return standard output for None, else the file. Raise CannotWrite if it cannot be created."""
    return Stdout() if path is None else AtomicFile(path)
