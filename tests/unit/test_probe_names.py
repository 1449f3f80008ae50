"""Function names in the probe catalog match all copies of a function and nothing else."""

from __future__ import annotations

import pytest

from innoscope.probes.mangling import has_other_arguments, is_copy, is_part, is_symbol_of, symbol_prefixes


@pytest.mark.parametrize(
    ("function", "symbol"),
    [
        ("log_write_up_to", "log_write_up_to"),
        ("log_write_up_to", "_Z15log_write_up_tommm"),
        ("buf_flush_LRU", "_ZL13buf_flush_LRUm"),
        ("buf_page_t::flush", "_ZN10buf_page_t5flushEP11fil_space_t"),
        ("DeadlockChecker::notify", "_ZNK15DeadlockChecker6notifyEPK9ib_lock_t"),
        ("Deadlock::report", "_ZN8DeadlockL6reportEP5trx_tb"),
        ("lock_sys_t::wr_lock", "_ZN10lock_sys_t7wr_lockEv.constprop.353"),
        ("buf_flush_page", "_Z14buf_flush_pageP10buf_pool_tP10buf_page_t11buf_flush_tb.isra.0.part.2"),
    ],
)
def test_a_name_matches_every_mangled_form(function: str, symbol: str) -> None:
    assert is_symbol_of(symbol, [function])
    assert any(symbol.startswith(prefix) for prefix in symbol_prefixes(function))


@pytest.mark.parametrize(
    ("function", "symbol"),
    [
        ("log_write_up_to", "_Z15log_write_up_tommm.cold"),
        ("log_write_up_to", "_Z15log_write_up_tommm.part.3.cold.7"),
        ("trx_purge", "_Z13trx_purge_runv"),
        ("trx_purge", "trx_purge_run"),
        ("buf_page_t::flush", "_ZN10buf_page_t12flush_laterEv"),
    ],
)
def test_a_name_does_not_match_other_functions(function: str, symbol: str) -> None:
    assert not is_symbol_of(symbol, [function])


def test_a_mangled_name_matches_its_copies_but_no_overload() -> None:
    one = "_ZN11buf_dblwr_t21flush_buffered_writesEm"
    assert is_copy(f"{one}.isra.4", [one])
    assert not is_copy("_ZN11buf_dblwr_t21flush_buffered_writesEv", [one])
    assert not is_copy(f"{one}.cold", [one])


def test_only_parts_count_some_of_the_calls() -> None:
    assert is_part("_Z1fv.part.3")
    assert not is_part("_Z1fv.isra.1")


def test_clones_with_other_arguments_are_recognized() -> None:
    assert has_other_arguments("_Z1fv.part.3")
    assert has_other_arguments("_Z1fv.isra.1.constprop.2")
    assert not has_other_arguments("_Z1fv.constprop.2")
