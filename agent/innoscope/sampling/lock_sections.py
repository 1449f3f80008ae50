"""The section that a lock protects, by the stacks of those that wait for it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.sampling.snapshot_history import Seen

#: So many of the waiting threads' functions, from the lock outwards, are taken for what it protects.
_SECTION: Final = 4
#: Functions that are shown of the way from a section's begin to where its thread is.
_SHOWN: Final = 4
#: Functions that every thread of a server is in: they protect nothing.
_EVERYWHERE: Final = frozenset(
    {
        "do_command", "dispatch_command", "mysql_parse", "mysql_execute_command", "do_handle_one_connection",
        "handle_one_connection", "handle_connection", "pfs_spawn_thread", "start_thread", "clone", "clone3",
        "dispatch_sql_command", "threadpool_process_request", "main", "mysqld_main", "thd_prepare_connection",
    }
)  # fmt: skip


def sections(waiting: Iterable[Seen]) -> set[str]:
    """The functions through which most of the waiting threads came to their lock."""
    weights: Counter[str] = Counter()
    total = 0
    for seen in waiting:
        total += seen.count
        for function in set(own_functions(seen.functions)):
            weights[function] += seen.count
    return {function for function, weight in weights.items() if weight * 2 >= total}


def own_functions(functions: tuple[str, ...]) -> list[str]:
    """The server's own functions next to the lock: those of libraries and of the lock itself are left out."""
    own = [name for name in functions if not _is_lock(name) and "+0x" not in name]
    return [name for name in own[:_SECTION] if name not in _EVERYWHERE]


def inside(functions: tuple[str, ...], wanted: set[str]) -> str:
    """``open_table → open_table_def → pread64``: the way in, from a wanted function (else any) inwards."""
    named = [name for name in functions if "+0x" not in name and name not in _EVERYWHERE]
    start = next((place for place, name in enumerate(named) if name in wanted), min(len(named), _SHOWN) - 1)
    way = named[: start + 1][::-1]
    shown = way if len(way) <= _SHOWN else [*way[: _SHOWN - 1], "…", way[-1]]
    return " → ".join(shown)


def _is_lock(name: str) -> bool:
    words = (
        "mutex",
        "rw_lock",
        "sux_lock",
        "rwlock",
        "lock_wait",
        "lll_lock",
        "pthread_",
        "futex",
        "sync_array",
        "os_event",
        "syscall",
        "ut_delay",
    )
    return any(word in name.lower() for word in words)


def first_of(functions: tuple[str, ...], wanted: set[str]) -> str | None:
    """The innermost of the wanted functions."""
    return next((name for name in functions if name in wanted), None)
