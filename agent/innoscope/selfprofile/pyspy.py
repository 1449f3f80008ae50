"""py-spy, the sampling profiler for Python programs: found, started for one process of ours, waited for."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.errors import InnoscopeError, NoRights, NoSuchProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Those of py-spy that we offer: an SVG, the file of speedscope.app, folded stacks with counts.
FORMATS: Final = ("flamegraph", "speedscope", "raw")
#: Looks a second.
RATE: Final = 100
#: Seconds beyond those asked for, in which it starts, reads symbols and writes.
_SLACK_S: Final = 20.0
_TICK_S: Final = 0.5
_PIECE: Final = 1 << 16
#: Of its output and of its words; more is not kept in memory.
_MOST_BYTES: Final = 64 << 20
_REFUSED: Final = ("permission denied", "operation not permitted")
_NOTHING_RAN: Final = "no stack counts found"


@dataclass(frozen=True, slots=True)
class Order:
    """What to record. ``idle`` adds threads that wait; ``native`` adds C frames and pauses the process."""

    pid: int
    seconds: int
    form: str = "raw"
    native: bool = False
    idle: bool = False


def find() -> Path:
    """The program: installed beside us, else on PATH. Raises InnoscopeError."""
    beside = str(Path(sys.executable).parent)
    if found := shutil.which("py-spy", path=beside) or shutil.which("py-spy"):
        return Path(found)
    raise InnoscopeError("py-spy is not installed", remedy=f"{sys.executable} -m pip install py-spy")


def record(order: Order, tick: Callable[[float], None] | None = None) -> bytes:
    """What py-spy writes in that format; empty ``raw`` when no thread ran.

    ``tick`` is called twice a second with the seconds since the start. Raises InnoscopeError, NoRights or
    NoSuchProcess.
    """
    program = find()
    reader, writer = os.pipe()
    mouth, errors = os.pipe()
    output, words = bytearray(), bytearray()
    command = [str(program), *_arguments(order), "--output", f"/proc/self/fd/{writer}"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(writer,),
            start_new_session=True,  # Ctrl-C is for us, who then end it
        )
    except OSError as error:
        os.close(reader)
        os.close(mouth)
        raise InnoscopeError(
            f"cannot start {program}: {error.strerror}", remedy=f"ls -l {program}"
        ) from error
    finally:
        os.close(writer)
        os.close(errors)
    try:
        _gather({reader: output, mouth: words}, order.seconds + _SLACK_S, tick)
        process.wait(_SLACK_S)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise InnoscopeError(
            f"py-spy did not end within {order.seconds + _SLACK_S:.0f} s", remedy="run it again"
        ) from error
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(mouth)
    if process.returncode:
        raise _explained(order, words.decode(errors="replace"), process.returncode)
    return bytes(output)


def _arguments(order: Order) -> list[str]:
    # Without --nonblocking py-spy stops the process by ptrace for each look: an agent that is short of CPU
    # time would answer even later, and neither unit allows ptrace. The price is a stack now and then that
    # changed while it was read; py-spy drops those that make no sense. C frames are only to be had stopped.
    stopping = ["--native"] if order.native else ["--nonblocking"]
    return [
        "record", *stopping, *(["--idle"] if order.idle else []), "--pid", str(order.pid),
        "--duration", str(order.seconds), "--rate", str(RATE), "--format", order.form,
    ]  # fmt: skip


def _gather(into: Mapping[int, bytearray], patience_s: float, tick: Callable[[float], None] | None) -> None:
    """Read the descriptors to their ends. Raises TimeoutError."""
    began = time.monotonic()
    with selectors.DefaultSelector() as waiting:
        for descriptor in into:
            waiting.register(descriptor, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select(_TICK_S):
                piece = os.read(key.fd, _PIECE)
                if not piece:
                    waiting.unregister(key.fd)
                elif len(into[key.fd]) < _MOST_BYTES:
                    into[key.fd].extend(piece)
            elapsed = time.monotonic() - began
            if elapsed > patience_s:
                raise TimeoutError
            if tick is not None:
                tick(elapsed)


def _explained(order: Order, words: str, code: int) -> InnoscopeError:
    """Why it failed, from its words on stderr: ``Error: …``, and causes below."""
    if not Path(f"/proc/{order.pid}").exists():
        return NoSuchProcess(f"process {order.pid} has ended", remedy="innoscope self-profile")
    if any(word in words.lower() for word in _REFUSED):
        return NoRights(
            f"no right to read process {order.pid}",
            remedy=f"as root: sudo innoscope self-profile --pid {order.pid}",
        )
    if _NOTHING_RAN in words.lower():
        return InnoscopeError(
            f"no thread of process {order.pid} ran within {order.seconds} s",
            remedy="more time: --seconds 60; or waiting threads too: --idle",
        )
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    said = "; ".join(lines[:3])[:300] or f"exit status {code}"
    return InnoscopeError(f"py-spy failed on process {order.pid}: {said}", remedy="py-spy dump --pid PID")
