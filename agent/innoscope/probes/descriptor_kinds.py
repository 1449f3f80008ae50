"""Count system calls on files by kind of file. The probes count them by descriptor, which can be reused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.sampling import descriptors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OTHER = "other"
#: The descriptor in the keys of the overflow entries of the ``files`` map (files.bpf.c).
OTHER_FILE: Final = 0xFFFFFFFF
#: Kinds of ``sampling.descriptors`` → label values of ``fsync_seconds`` and ``read_seconds``.
_LABELS = {
    "data": "data", "undo": "data", "redo": "redo", "binlog": "binlog", "relaylog": "binlog",
    "doublewrite": "doublewrite", "temporary": "temporary",
}  # fmt: skip


class DescriptorKinds:
    """The kinds of one process's descriptors."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, str] = {}

    def kinds(self, numbers: set[int]) -> dict[int, str]:
        """Return the kind of file that each descriptor has been used for since the last call.

        The kind is data, redo, binlog, doublewrite, temporary, or other for all other files. It is also other
        if the descriptor is closed, or if its kind differs from that at the last call, because the descriptor
        may have been used for several files since then.
        """
        found = descriptors.kinds(self._pid, numbers)
        now = {number: _LABELS.get(kind, OTHER) for number, kind in found.items()}
        before, self._before = self._before, now
        return {
            number: now[number] if number in now and before.get(number, now[number]) == now[number] else OTHER
            for number in numbers
        }

    def closed(self, numbers: Iterable[int]) -> set[int]:
        """Return the ``numbers`` that were not open at the last call of ``kinds``."""
        return set(numbers) - self._before.keys()


class CountsByKind:
    """The sums of the counts of all descriptors, by operation and kind of file. They never decrease."""

    def __init__(self) -> None:
        self._counted: dict[tuple[int, int], tuple[float, ...]] = {}
        self._sums: dict[tuple[int, str], tuple[float, ...]] = {}

    def add(
        self, counts: Mapping[tuple[int, int], Sequence[float]], kinds: Mapping[int, str]
    ) -> Mapping[tuple[int, str], Sequence[float]]:
        """Add the increase of the counts since the last call, and return the sums.

        ``counts`` contains the words of the histogram of each descriptor and operation since the probes were
        attached. ``kinds`` contains the kind of file that each descriptor has been used for since the last
        call. If a descriptor is no longer in ``counts``, its previous counts are now included in the
        counts of OTHER_FILE.
        """
        for missing in self._counted.keys() - counts.keys():
            counted, other = self._counted.pop(missing), (OTHER_FILE, missing[1])
            more = self._counted.get(other, (0.0,) * len(counted))
            self._counted[other] = tuple(one + two for one, two in zip(counted, more, strict=True))
        for (descriptor, operation), words in counts.items():
            before = self._counted.get((descriptor, operation), (0.0,) * len(words))
            sums = self._sums.get((operation, kinds[descriptor]), (0.0,) * len(words))
            self._counted[descriptor, operation] = tuple(words)
            self._sums[operation, kinds[descriptor]] = tuple(
                [total + word - past for total, word, past in zip(sums, words, before, strict=True)]
            )
        return self._sums
