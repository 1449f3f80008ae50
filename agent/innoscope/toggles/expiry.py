"""Undo temporary changes automatically, even if the terminal is closed or this process has exited.

A transient systemd timer starts expiry_main at the time of the undo. Without systemd, expiry_main runs as a
daemon and waits until then. expiry_main receives the change's id, and reads the change itself from the
journal.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.toggles.model import ChangeRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.target.credentials import LoginOptions
    from innoscope.toggles.journal_format import JournalEntry

#: Exists if and only if systemd is process 1 (sd_booted(3)).
SYSTEMD: Final = Path("/run/systemd/system")
_STARTED_S: Final = 20.0
#: Environment variables that the undo needs.
_PASSED_ON: Final = ("INNOSCOPE_STATE", "INNOSCOPE_RUN", "HOME", "PATH", "PYTHONPATH", "LANG")


def arm(entry: JournalEntry, account: LoginOptions, state: Path) -> None:
    """Schedule the undo of ``entry`` at the time ``entry.until``. Raise ChangeRefused if this fails.

    Call this before writing the entry to the journal. If the journal does not contain the entry at the time
    ``entry.until``, nothing is undone.
    """
    if entry.until is None:
        return
    seconds = max(0.0, entry.until - time.time())
    server = " ".join(map(str, entry.server.life))
    options = ["--state", str(state), "--server", server, "--maker", str(os.getpid())]
    if account.defaults_file is not None:
        options += ["--defaults-file", str(Path(account.defaults_file).expanduser().absolute())]
    if account.user is not None:
        options += ["--user", account.user]
    if SYSTEMD.exists():
        _run(timer_command(entry.id, seconds, options))
    else:
        _start_helper(entry.id, seconds, options)


def disarm(ident: str) -> None:
    """Cancel the scheduled undo by stopping its timer.

    A helper process needs no signal: it exits once the journal shows that nothing is left to undo.
    """
    if SYSTEMD.exists():
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                ["systemctl", "stop", f"{_unit(ident)}.timer"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=_STARTED_S, check=False,
            )  # fmt: skip


def timer_command(ident: str, seconds: float, options: Sequence[str]) -> list[str]:
    """Return the command that creates the timer. Its service retries until nothing is left to undo."""
    passed_on = [f"--setenv={name}={os.environ[name]}" for name in _PASSED_ON if name in os.environ]
    return [
        "systemd-run", "--quiet", "--collect", f"--unit={_unit(ident)}",
        f"--description=Innoscope: undo the change {ident}",
        f"--on-active={seconds:.3f}s", "--timer-property=AccuracySec=100ms",
        *passed_on, *_program(ident, 0.0, options), "--foreground",
    ]  # fmt: skip


def _unit(ident: str) -> str:
    return f"innoscope-undo-{ident}"


def _program(ident: str, seconds: float, options: Sequence[str]) -> list[str]:
    module = "innoscope.toggles.expiry_main"
    return [sys.executable, "-P", "-m", module, ident, f"{seconds:.3f}", *options]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_STARTED_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _cannot(str(error)) from error
    if done.returncode:
        raise _cannot(done.stderr.strip() or f"exit code {done.returncode}")


def _start_helper(ident: str, seconds: float, options: Sequence[str]) -> None:
    """Start the helper process and wait until it reports that it is a daemon.

    Raise ChangeRefused if it fails.
    """
    theirs, ours = os.pipe()
    with open(theirs, "rb", buffering=0) as hears:  # noqa: PTH123, a descriptor
        try:
            process = subprocess.Popen(
                _program(ident, seconds, options),
                stdin=subprocess.DEVNULL,
                stdout=ours,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise _cannot(str(error)) from error
        finally:
            os.close(ours)
        with process:
            ready, _, _ = select.select([hears], [], [], _STARTED_S)
            if not ready or not hears.read(100).startswith(b"waiting "):
                process.kill()
                raise _cannot("the helper process did not start")


def _cannot(why: str) -> ChangeRefused:
    return ChangeRefused(
        f"nothing was changed: cannot schedule the undo: {why}",
        remedy="without --for, set it and undo it manually: innoscope toggle undo",
    )
