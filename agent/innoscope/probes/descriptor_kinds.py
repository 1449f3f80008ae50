"""What kind of file a descriptor of the server is, remembered while the descriptor is gone."""

from __future__ import annotations

from innoscope.sampling import descriptors

OTHER = "other"
#: From the kinds of ``stacks.descriptors`` to the label values of ``fsync_seconds``.
_LABELS = {
    "data": "data", "undo": "data", "redo": "redo", "binlog": "binlog", "relaylog": "binlog",
    "doublewrite": "doublewrite", "temporary": "temporary",
}  # fmt: skip


class Descriptors:
    """The kinds of one process's descriptors. A descriptor that was closed keeps the kind it had last."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}

    def kinds(self, numbers: set[int]) -> dict[int, str]:
        """data, redo, binlog, doublewrite, temporary or other for each of these."""
        found = descriptors.kinds(self._pid, numbers)
        self._known |= {number: _LABELS.get(kind, OTHER) for number, kind in found.items()}
        return {number: self._known.get(number, OTHER) for number in numbers}
