"""A process that imitates a server, with terminal escape sequences in every name, row and error."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from servers import Keeper

#: A hostile name: OSC (window title), a color, the C1 form of CSI, bidirectional controls, invalid UTF-8,
#: and markup of the library rich.
EVIL = b"\x1b]0;PWNED\x07\x1b[38;5;201m\xc2\x9b2J\xe2\x80\xae\xe2\x81\xa6\xff[red]"
#: The escaped form of a part of EVIL in text and in JSON. Output that contains neither form proves nothing.
SHOWN = (r"PWNED\x07", r"PWNED\u0007")

_SOURCE = Path(__file__).with_name("hostile.cpp")
_LENGTH = 37  # length in bytes of the names in hostile.cpp


class HostileServer:
    """A process whose paths, options, threads, functions and replies contain hostile names."""

    def __init__(self, mode: Literal["rows", "errors"] = "rows", *, benign: bool = False) -> None:
        self._mode, self._benign = mode, benign
        self._keeper = Keeper()
        self.evil = b"harmless" if benign else EVIL
        self.folder = Path(os.fsdecode(tempfile.mkdtemp(prefix=b"h" + self.evil[:28])))

    def __enter__(self) -> HostileServer:
        executable = self.folder / "mysqld"
        options = ["-DBENIGN"] if self._benign else []
        build = ["g++", "-O1", "-pthread", *options, "-o", str(executable), str(_SOURCE)]
        subprocess.run(build, check=True, capture_output=True)
        if not self._benign:
            executable.write_bytes(_renamed(executable.read_bytes()))
        evil = os.fsdecode(self.evil)
        self._process = subprocess.Popen(
            [
                executable, f"--socket={self.socket}", f"--datadir=/{evil}", f"--port={evil}",
                f"--mode={self._mode}", f"--{evil}",
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._keeper.watch(self.pid)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._keeper.close()
        shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def socket(self) -> Path:
        return self.folder / "s"


def _renamed(program: bytes) -> bytes:
    """Replace the names of two functions in the executable with hostile ones of the same length."""
    for letter in (b"A", b"B"):
        name = b"evil_" + 32 * letter
        assert len(name) == _LENGTH
        assert name in program
        evil = EVIL.replace(b"\xff", b"")  # Innoscope ignores names that are not UTF-8
        program = program.replace(name, (evil + letter * _LENGTH)[:_LENGTH])
    return program
