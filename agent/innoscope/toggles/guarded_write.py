"""Verify the steps of a change, and restore the old values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.toggles.journal_format import inverse
from innoscope.toggles.model import ChangeFailed, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.toggles.model import ChangeStep, Writer


def nothing(_: str) -> None:
    """Do nothing: the default for ``fault``, which tests replace to inject faults."""


def verify(writer: Writer, steps: Sequence[ChangeStep]) -> None:
    """Read back all settings. Raise ChangeFailed if a value differs from the written one."""
    for step in steps:
        now = writer.read(step)
        if not same(now, step.new):
            raise ChangeFailed(
                f"{step.setting} reads back as {now}, not {step.new}",
                remedy="the server limits the value, or another client set it at the same time",
            )


def put_back(writer: Writer, attempted: Sequence[ChangeStep]) -> list[str]:
    """Restore the old values of steps that may have been written, last step first.

    Return a message for each value that may not have been restored.
    """
    left = []
    for step in reversed(attempted):
        try:
            now = writer.read(step)
            if not same(now, step.old):
                writer.write(inverse(step, now))
                now = writer.read(step)
            if not same(now, step.old):
                left.append(f"{step.setting} is {now}, but was {step.old}")
        except InnoscopeError as error:
            left.append(f"{step.setting} may be {step.new}, but was {step.old}: {error.what}")
    return left
