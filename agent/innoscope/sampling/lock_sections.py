"""Find the critical section that a lock protects, from the stacks of the threads waiting for the lock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.sampling.snapshot_history import ObservedStack

#: Maximum number of callers of the lock function that may belong to the critical section.
_SECTION_DEPTH: Final = 4
#: Maximum number of functions in a displayed call path.
_MAX_SHOWN: Final = 4
#: Functions that are on the stacks of most threads, and therefore do not identify a section.
_EVERYWHERE: Final = frozenset(
    {
        "do_command", "dispatch_command", "mysql_parse", "mysql_execute_command", "do_handle_one_connection",
        "handle_one_connection", "handle_connection", "pfs_spawn_thread", "start_thread", "clone", "clone3",
        "dispatch_sql_command", "threadpool_process_request", "main", "mysqld_main", "thd_prepare_connection",
    }
)  # fmt: skip


def protected_functions(waiting: Iterable[ObservedStack]) -> set[str]:
    """Return the functions through which at least half of the waiting threads requested the lock."""
    weights: Counter[str] = Counter()
    total = 0
    for stack in waiting:
        total += stack.count
        for function in set(own_functions(stack.functions)):
            weights[function] += stack.count
    return {function for function, weight in weights.items() if weight * 2 >= total}


def own_functions(functions: tuple[str, ...]) -> list[str]:
    """Return the functions nearest to the lock, except lock functions and functions without symbols."""
    own = [name for name in functions if not _is_lock(name) and "+0x" not in name]
    return [name for name in own[:_SECTION_DEPTH] if name not in _EVERYWHERE]


def call_path(functions: tuple[str, ...], wanted: set[str]) -> str:
    """Return the calls from a wanted function inward, such as ``open_table → open_table_def → pread64``.

    Without a wanted function, return the innermost calls.
    """
    named = [name for name in functions if "+0x" not in name and name not in _EVERYWHERE]
    innermost = min(len(named), _MAX_SHOWN) - 1
    start = next((position for position, name in enumerate(named) if name in wanted), innermost)
    path = named[: start + 1][::-1]
    shown = path if len(path) <= _MAX_SHOWN else [*path[: _MAX_SHOWN - 1], "…", path[-1]]
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


def innermost_of(functions: tuple[str, ...], wanted: set[str]) -> str | None:
    """Return the innermost of the wanted functions, or None if none is on the stack."""
    return next((name for name in functions if name in wanted), None)
