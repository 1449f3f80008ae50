"""Profile CPU time: sample a server's running threads by the software clock of each CPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.sampling.classify import label
from innoscope.sampling.missing_names import missing_names
from innoscope.sampling.profile.model import SAMPLES, Profile, Row
from innoscope.sampling.profile.naming import ThreadBuilder
from innoscope.sampling.profile.setup import Naming, open_samples, ring_bytes
from innoscope.target.container import require_host_pids
from innoscope.target.native_errors import translating
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from innoscope.target.model import Target

_TICKS = os.sysconf("SC_CLK_TCK")


class OnCpuProfiler:
    """Sample one server at ``frequency`` Hz per CPU. Raises NoRights, KernelUnable or NoSuchProcess."""

    def __init__(self, target: Target, frequency: float = 99.0, naming: Naming | None = None) -> None:
        require_host_pids("profile")
        naming = naming or Naming()
        self.target = target
        self._period_ns = int(1e9 / frequency)
        with translating(target.pid):
            self._program = _native.OnCpu(
                target.pid, target.start_time, kernel=naming.kernel, ring_bytes=ring_bytes(frequency)
            )
            ring = self._program.ring
        self._samples, self._notes = open_samples(target, ring, naming)
        self._builder = ThreadBuilder(target.pid, self._samples)
        self._began_at = self._began = self._cpu = self._last_cpu = 0.0

    def begin(self) -> None:
        """Start sampling."""
        self._began_at, self._began = time.time(), time.monotonic()
        self._cpu = self._last_cpu = self._cpu_seconds()
        with translating(self.target.pid):
            self._program.begin(self._period_ns)

    def poll(self) -> None:
        """Read new samples."""
        with translating(self.target.pid):
            self._samples.read()
        self._last_cpu = max(self._last_cpu, self._cpu_seconds())  # in case the server ends

    def progress_text(self) -> str:
        """Return the samples so far, such as ``812 samples: recovery 81 %, on CPU 12 %``."""
        waits: Counter[str] = Counter()
        comms = self._samples.comms()
        for one in self._samples.counts():
            waits[self._builder.running(one.tid, comms.get(one.tid, ""), one.place).wait] += one.records
        total = waits.total()
        most = ", ".join(f"{label(wait)} {100 * count / total:.0f} %" for wait, count in waits.most_common(2))
        return f"{total:,} samples" + (f": {most}" if most else "")

    def finish(self) -> Profile:
        """Detach everything and return the profile."""
        self._program.end()
        seconds = time.monotonic() - self._began
        self.poll()
        comms = self._samples.comms()
        rows = [
            Row(self._builder.running(one.tid, comms.get(one.tid, ""), one.place), one.records, one.records)
            for one in self._samples.counts()
        ]
        notes = missing_names(self.target, self._samples.modules, (row.thread.frames for row in rows))
        taken = self._samples.taken
        return Profile(
            target=self.target,
            unit=SAMPLES,
            began_at=self._began_at,
            seconds=seconds,
            rows=rows,
            records=taken.records,
            bytes=taken.bytes,
            lost=self._program.lost,
            period_ns=self._period_ns,
            cpu_seconds=self._last_cpu - self._cpu,
            notes=dict.fromkeys((*self._notes, *notes)),
        )

    def _cpu_seconds(self) -> float:
        """Return the server's CPU time so far in seconds; 0 if it has ended."""
        try:
            return ProcFs().cpu_ticks(self.target.pid) / _TICKS
        except OSError:
            return 0.0
