"""Run a command on a separate terminal, and check its output for control characters."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

from safety.command import DEADLINE_S, INNOSCOPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROWS, COLUMNS = 50, 220
#: The only control characters that commands other than full-screen ones write (common/console.py).
WIPE = "\r\x1b[K"
#: CSI sequences, OSC and similar sequences with their text, and two-character escapes.
SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_].*?(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])", re.DOTALL)
#: Pairs (awaited output, input) that open each kind of page of ``top`` or ``replay``. Most keys wait for the
#: effect of the previous one: if both are read at once, Esc and ``n`` are Alt-N, and the input field that
#: Enter closes still gets the ``q``.
KEYS = (
    (b"quit", b"\t"), (b"", b"\x1b[B"), (b"", b"\r"), (b"STACK", b"\x1b"), (b"quit", b"n"),
    (b"Notes", b"\x1b"), (b"quit", b"/"), (b"ind functions", b"PWN\r"), (b"PWN", b"q"),
)  # fmt: skip
#: A whole line in one of the colors of common/console.py.
_COLORED = re.compile(r"^\x1b\[3[123]m(.*)\x1b\[0m$", re.MULTILINE)
_PLACE = re.compile(r"\x1b\[\d+;\d+H")
_SETTLED_S = 0.3


def run_on_terminal(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    typing: Sequence[tuple[bytes, bytes]] = (),
    until: bytes | None = None,
    under: Sequence[str] = (),
    code: int | None = None,
) -> bytes:
    """Run innoscope to its end and return everything that it wrote to the terminal.

    ``typing`` contains pairs: an output to wait for, and the input to type then. ``until`` is the output
    after which a daemon gets SIGTERM. ``code`` is the expected exit code, or None for any.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [*under, INNOSCOPE, *arguments],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        env={**_without_size(os.environ), "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(slave)
    got = b""
    waiting, seen = list(typing), 0
    deadline = time.monotonic() + DEADLINE_S
    try:
        for part in _parts(master, deadline):
            got += part
            if waiting and part == b"" and waiting[0][0] in got[seen:]:
                seen = len(got)
                os.write(master, waiting.pop(0)[1])
            if until is not None and until in got:
                os.kill(process.pid, signal.SIGTERM)
                until = None
        assert not waiting, (waiting, got[-2000:])
        assert until is None, (until, got[-2000:])
        assert code in (None, process.wait(timeout=DEADLINE_S)), got[-2000:]
    finally:
        if process.poll() is None and time.monotonic() >= deadline:
            process.kill()
        process.wait(timeout=DEADLINE_S)
        os.close(master)
    return got


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of pytest-xdist that override the terminal's size."""
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}


def _parts(master: int, deadline: float) -> Iterator[bytes]:
    """Yield the output until the last writer has closed the terminal, and ``b""`` when it pauses."""
    readable = select.poll()  # unlike select(), poll() supports descriptors above 1,023
    readable.register(master, select.POLLIN)
    while time.monotonic() < deadline:
        if not readable.poll(_SETTLED_S * 1000):
            yield b""
            continue
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # EIO: the other end was closed
            return
        if not part:
            return
        yield part


def violations(output: bytes, own: Callable[[str], str] = lambda text: text.replace(WIPE, "")) -> list[str]:
    """Return the control and bidirectional characters that do not come from the command itself.

    ``own`` removes the sequences that the command itself writes.
    """
    text = output.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    text = own(text)
    return sorted(
        {ascii(character) for character in text if character != "\n" and not character.isprintable()}
    )


def without_colors(text: str) -> str:
    """Remove colors of whole lines; replace the sequence that erases a progress line with a line break."""
    return _COLORED.sub(r"\1", text.replace(WIPE, "\n"))


def sequences(output: bytes) -> set[str]:
    """Return the escape sequences in the output of a full-screen command, except cursor positions."""
    return set(SEQUENCE.findall(_PLACE.sub("", output.decode("utf-8", "surrogateescape"))))


def without(allowed: set[str]) -> Callable[[str], str]:
    """Return a function that removes cursor positions, progress lines and the sequences in ``allowed``."""

    def take_out(text: str) -> str:
        text = _PLACE.sub("", without_colors(text))
        return SEQUENCE.sub(lambda match: "" if match.group() in allowed else match.group(), text)

    return take_out
