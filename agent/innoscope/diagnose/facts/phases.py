"""Detect the phase of a server's startup or shutdown from the functions on its threads' stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.evidence import Evidence, FactFunctions

#: Functions that identify each phase, in MySQL 5.5 to 9.x and MariaDB. Those that purge, merge or flush also
#: run during normal operation, so rules use these phases only for a server that is shutting down.
_FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "recovery_scan": (
        "recv_group_scan_log_recs", "recv_scan_log_*", "recv_sys_t::parse*", "recv_parse_log_*",
        "recv_read_log_seg", "recv_recovery_begin", "recv_single_rec", "recv_multi_rec",
    ),
    "recovery_apply": (
        "recv_apply_hashed_log_recs", "recv_sys_t::apply*", "recv_recover_page*", "recv_read_in_area",
        "recv_apply_log_rec", "buf_read_recv_pages",
    ),
    "recovery_rollback": (
        "trx_rollback_or_clean_*", "trx_rollback_recovered", "trx_rollback_all_recovered",
        "trx_recovery_rollback*", "trx_rollback_active", "recv_recovery_rollback_active",
    ),
    "shutdown_clients": (
        "close_connections", "Connection_handler_manager::wait_till_no_connection",
        "Global_THD_manager::wait_till_no_thd", "THD_list::*wait*",
    ),
    "shutdown_purge": ("trx_purge", "trx_purge_*", "row_purge*", "srv_do_purge", "purge_worker_callback"),
    "shutdown_merge": ("ibuf_contract*", "ibuf_merge*", "buf_read_ibuf_merge_pages"),
    "shutdown_flush": (
        "buf_flush_list", "buf_flush_lists", "buf_flush_do_batch", "buf_flush_batch",
        "buf_do_flush_list_batch",
        "buf_flush_wait_batch_end", "page_cleaner_do_flush_batch", "page_cleaner_flush_pages_if_needed",
        "pc_flush_slot", "buf_flush_sync*", "log_make_checkpoint*",
    ),
}  # fmt: skip


def _share(evidence: Evidence, patterns: _native.Patterns) -> float:
    """Return the mean number of threads per snapshot that were in a matching function, at most 1.

    Raise Unknown if no thread was in a matching function.
    """
    count = sum(seen.count for seen in evidence.seen if any(map(patterns.matches, seen.functions)))
    if not count:
        raise Unknown("looks", evidence.missing.get("looks"))
    return min(1.0, count / len(evidence.snapshots))


def _fact(functions: tuple[str, ...]) -> Callable[[Evidence], float]:
    patterns = _native.Patterns(functions)
    return lambda evidence: _share(evidence, patterns)


FACTS: Final[FactFunctions] = {f"phase_{name}": _fact(functions) for name, functions in _FUNCTIONS.items()}
