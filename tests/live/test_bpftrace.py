"""Test that a bpftrace program keeps counting when another one exits."""

from __future__ import annotations

import os

from bpftrace import Independent


def test_program_that_ends_does_not_end_another() -> None:
    calls = f"tracepoint:syscalls:sys_enter_getsid /pid == {os.getpid()}/"
    with Independent(calls) as outer:
        with Independent(calls) as inner:
            os.getsid(0)
        os.getsid(0)
    assert (outer.count, inner.count) == (2, 1)
