"""Count a server's threads and work without Innoscope, to confirm or refute a finding.

Runnable threads are counted in /proc. bpftrace measures the time in system calls that read and sync files,
because samples would miss short calls. The server's own status counters count the work.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from bpftrace import Bpftrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Seconds between two samples of the threads.
_EVERY: Final = 0.1
#: Sum the time in nanoseconds that the server's threads spend in the system calls that read and sync files.
_IN_CALL: Final = """
tracepoint:syscalls:sys_enter_{call} /pid == {pid}/ {{ @began[tid] = nsecs; }}
tracepoint:syscalls:sys_exit_{call} /@began[tid]/ {{
  @{sum} = sum(nsecs - @began[tid]);
  delete(@began[tid]);
}}
"""
_CALLS: Final = {"pread64": "reading", "fsync": "syncing", "fdatasync": "syncing"}
#: Indexes of the idle and iowait times among the numbers in the first line of /proc/stat.
_IDLE, _IOWAIT = 3, 4
#: Status counters that are reported as rates.
_RATES: Final = (
    "Innodb_buffer_pool_reads", "Innodb_os_log_written", "Innodb_data_fsyncs",
    "Innodb_row_lock_time", "Created_tmp_disk_tables", "Questions", "Com_commit", "Connections",
)  # fmt: skip


@dataclass(slots=True)
class Counted:
    """The counts over ``seconds``. ``rates`` contains the increase per second of each status counter.

    ``host_busy`` is the share of the host's CPU time that was used, and ``load`` the host's load average at
    the start. ``runnable`` is the mean number of runnable threads, ``reading`` the mean number of threads in
    pread64, and ``syncing`` the mean number in fsync or fdatasync. ``runner`` is the share of the samples in
    which the busiest thread was runnable.
    """

    cpus: int = 0
    seconds: float = 0.0
    load: float = 0.0
    host_busy: float = 0.0
    runnable: float = 0.0
    runner: float = 0.0
    reading: float = 0.0
    syncing: float = 0.0
    redo_capacity: int = 0
    rates: dict[str, float] = field(default_factory=dict)


@contextmanager
def counting(server: Server) -> Iterator[Counted]:
    """Count while the block runs. The counts are complete when the block ends."""
    counted = Counted(
        cpus=len(os.sched_getaffinity(0)), load=os.getloadavg()[0], redo_capacity=_redo_capacity(server)
    )
    program = "".join(_IN_CALL.format(pid=server.pid, call=call, sum=name) for call, name in _CALLS.items())
    with Bpftrace(program) as traced:
        began, host_before, status_before = time.monotonic(), _host_ticks(), _status(server)
        with _Runnable(server.pid) as runnable:
            yield counted
        host, status = _host_ticks(), _status(server)
        counted.seconds = time.monotonic() - began
    busy, idle = host[0] - host_before[0], host[1] - host_before[1]
    counted.host_busy = busy / max(busy + idle, 1)
    counted.rates = {name: (status[name] - status_before[name]) / counted.seconds for name in status}
    counted.runnable = runnable.threads.total() / max(runnable.samples, 1)
    counted.runner = max(runnable.threads.values(), default=0) / max(runnable.samples, 1)
    counted.reading = traced.maps.get("@reading", 0) / 1e9 / counted.seconds
    counted.syncing = traced.maps.get("@syncing", 0) / 1e9 / counted.seconds


class _Runnable:
    """Context manager: count in how many of ``samples`` samples each thread of a process was runnable."""

    def __init__(self, pid: int) -> None:
        self.samples = 0
        self.threads: Counter[str] = Counter()
        self._tasks = Path(f"/proc/{pid}/task")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample_until_ended(self) -> None:
        while not self._ended.wait(_EVERY):
            self._sample()

    def _sample(self) -> None:
        self.samples += 1
        for task in self._tasks.iterdir():
            try:
                state = (task / "stat").read_text().rpartition(")")[2].split(None, 1)[0]
            except OSError:  # the thread has exited
                continue
            self.threads[task.name] += state == "R"


def _host_ticks() -> tuple[int, int]:
    """Return the busy and the idle CPU time of the host, in ticks."""
    numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = numbers[_IDLE] + numbers[_IOWAIT]
    return sum(numbers) - idle, idle


def _status(server: Server) -> dict[str, int]:
    wanted = ", ".join(f"'{name}'" for name in _RATES)
    rows = server.sql(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({wanted})")
    return {name: int(value) for name, value in rows}


def _redo_capacity(server: Server) -> int:
    """Return the size of the redo log in bytes, from the settings that MySQL 8.0.30 deprecated.

    If these settings are set, newer versions still apply them.
    """
    rows = dict(server.sql("SHOW GLOBAL VARIABLES LIKE 'innodb_log_file%'"))
    return int(rows["innodb_log_file_size"]) * int(rows.get("innodb_log_files_in_group", 1))
