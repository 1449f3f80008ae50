"""Runs inside gdb before all else: at one moment it dies, stops or hangs. FAULT is ``moment deed``."""

# mypy: ignore-errors

import os
import signal
import time

import gdb

_moment, _deed = os.environ["FAULT"].split()
_execute = gdb.execute


def _do():
    if _deed == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if _deed == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while _deed == "hung":
        time.sleep(1)


def _faulty(command, *arguments, **named):
    verb = command.split()[0]
    if _moment == f"before-{verb}":
        _do()
    result = _execute(command, *arguments, **named)
    if _moment == f"after-{verb}":
        _do()
    return result


gdb.execute = _faulty
