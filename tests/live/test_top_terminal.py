"""Test that ``innoscope top`` exits when its terminal is closed."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

from innoscope.common.errors import ExitCode
from safety.command import INNOSCOPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Server

_PATIENCE_S = 120


def test_top_exits_when_its_terminal_is_closed_even_if_sighup_is_ignored(
    server: Callable[[str], Server],
) -> None:
    master, slave = pty.openpty()
    command = ["env", "--ignore-signal=HUP", INNOSCOPE, "top", "--pid", str(server("mysql-5.6.24").pid)]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        try:
            shown = b""
            while b"mysql" not in shown:
                shown += os.read(master, 1 << 16)
            os.close(master)
            assert process.wait(_PATIENCE_S) == ExitCode.INTERRUPTED
        finally:
            process.kill()
