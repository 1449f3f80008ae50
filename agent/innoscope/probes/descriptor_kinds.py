"""Classify the server's file descriptors, and remember the kinds of closed descriptors."""

from __future__ import annotations

from innoscope.sampling import descriptors

OTHER = "other"
#: Kinds of ``sampling.descriptors`` → label values of ``fsync_seconds``.
_LABELS = {
    "data": "data", "undo": "data", "redo": "redo", "binlog": "binlog", "relaylog": "binlog",
    "doublewrite": "doublewrite", "temporary": "temporary",
}  # fmt: skip


class DescriptorKinds:
    """The kinds of one process's descriptors. A closed descriptor keeps its last kind."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}

    def kinds(self, numbers: set[int]) -> dict[int, str]:
        """Return data, redo, binlog, doublewrite, temporary or other for each descriptor."""
        found = descriptors.kinds(self._pid, numbers)
        self._known |= {number: _LABELS.get(kind, OTHER) for number, kind in found.items()}
        return {number: self._known.get(number, OTHER) for number in numbers}
