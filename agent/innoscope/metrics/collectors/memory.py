"""Collect InnoDB's metrics from the server's memory, even when SQL does not work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.memory.reader import MemoryReader
from innoscope.metrics.collectors import derived
from innoscope.metrics.collectors.errors import CollectorFailed, explaining

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.target.model import Target


#: Seconds after which a stuck run is abandoned (common/workers.py). The first run reads debug information in
#: a child process that may need 1.5 GiB (288 MiB for a file that root does not own) and is killed after 90 s.
#: Until then, the threads of such runs must count, so that only a few children run at the same time.
ABANDON_AFTER: Final = {"memory": 100.0}


class MemoryCollector:
    """Collects InnoDB's metrics from one server process. Not thread-safe.

    ``status`` adds InnoDB's status variables, and ``variables`` InnoDB's system variables: together 86 series
    in MySQL 5.5.9, and 239 in MariaDB 10.5. The first run locates all values, which may take seconds.
    ``reader.explain()`` reports which values were found.
    """

    name = "memory"
    timeout = 10.0

    def __init__(
        self,
        target: Target,
        *,
        status: bool = False,
        variables: bool = False,
        reader: MemoryReader | None = None,
    ) -> None:
        self.reader = reader or MemoryReader(target)
        self._status = status
        self._variables = variables
        self._earlier: tuple[float, Mapping[str, float]] | None = None

    def collect(self) -> list[Sample]:
        """Return all samples.

        Raise CollectorFailed if this fails, with reason ``gone``, ``rights``, ``unsupported`` (nothing can be
        read) or ``error``.
        """
        with explaining():
            values = self.reader.read()
            extra = [*self._status_samples(), *self._variable_samples()]
        if not values and not extra:
            reason = self.reader.explain()[0]
            words = f"cannot read metrics from this server's memory: {reason.reason}"
            raise CollectorFailed("unsupported", words, remedy=reason.remedy)
        now = time.monotonic()
        samples = [
            *derived.plain(values, (name.partition(".")[0] for name in values)),
            *derived.derive(values, self._earlier, now),
        ]
        self._earlier = (now, values)
        return samples + extra

    def latest(self) -> Mapping[str, float]:
        """Return the values of the last run, keyed by name in memory.yaml; empty before the first run."""
        return self._earlier[1] if self._earlier else {}

    def _status_samples(self) -> Iterator[Sample]:
        if self._status:
            for name, status in self.reader.status().items():
                age = "now" if status.live else "last_show_status"
                yield Sample("innodb_status", status.value, (name, age))

    def _variable_samples(self) -> Iterator[Sample]:
        if self._variables:
            for name, value in self.reader.variables().items():
                if not isinstance(value, str):
                    yield Sample("innodb_variable", value, (name,))
