"""Builders of targets, threads and snapshots for tests of the layers above the Rust core."""

from __future__ import annotations

from innoscope.sampling.model import Frame, Snapshot, Thread, Trust
from innoscope.target.model import Query, Target


def target(**changes: object) -> Target:
    """Return a target that describes a MySQL 5.6 server; ``changes`` replace its fields."""
    values: dict[str, object] = {
        "pid": 4242,
        "start_time": 77,
        "flavour": "mysql",
        "version": (5, 6, 24),
        "version_text": "5.6.24",
        "version_from": "binary",
        "executable": "/usr/sbin/mysqld",
        "deleted": False,
        "build_id": "ab" * 20,
        "socket": "/tmp/mysql.sock",  # noqa: S108
        "port": 3306,
        "datadir": "/var/lib/mysql",
        "threads": 3,
        "root": "/",
        "container": None,
        "symbols": "symtab",
    }
    return Target(**{**values, **changes})  # type: ignore[arg-type]


def frames(*names: str, module: str = "mysqld") -> tuple[Frame, ...]:
    """Return a stack, innermost frame first.

    ``lib.so!name`` sets the module of a frame; an empty name makes a frame without a symbol.
    """
    made = []
    for number, name in enumerate(names):
        library, mark, function = name.rpartition("!")
        made.append(Frame(function or None, library if mark else module, 0x1000 + number))
    return tuple(made)


IDLE = frames("libc.so.6!poll", "vio_io_wait", "my_net_read", "do_command", "libc.so.6!start_thread")
ROW_LOCK = frames(
    "libc.so.6!pthread_cond_wait", "os_event_wait_low", "lock_wait_suspend_thread", "do_command"
)
RUNNING = frames("btr_cur_search_to_nth_level", "row_search_mvcc", "do_command")


def thread(
    tid: int,
    stack: tuple[Frame, ...] = IDLE,
    wait: str = "idle",
    trust: Trust = Trust.EXACT,
    query: str | None = None,
    state: str = "S",
) -> Thread:
    statement = Query(tid, "app", "localhost", "shop", "Query", "updating", 3, query) if query else None
    return Thread(tid, tid, "mysqld", state, trust, wait, stack, 7, statement)


def snapshot_of(*threads: Thread, taken_at: float = 1_700_000_000.0, notes: tuple[str, ...] = ()) -> Snapshot:
    """Return a snapshot of the given threads."""
    return Snapshot(target(), "bpf", taken_at, 4.8, threads, notes)


def mixed() -> Snapshot:
    """Return a snapshot of three idle threads, two in row_lock (one is torn), and a stale one on a CPU."""
    return snapshot_of(
        thread(1),
        thread(2),
        thread(3),
        thread(4, ROW_LOCK, "row_lock", query="UPDATE `t` SET `a` = ?"),
        thread(5, ROW_LOCK, "row_lock", Trust.TORN, query="UPDATE `t` SET `a` = ?"),
        thread(6, RUNNING, "on_cpu", Trust.STALE, state="R"),
    )
