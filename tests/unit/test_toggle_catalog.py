"""toggles.yaml defines the right settings, backends and values for each generation of servers."""

from __future__ import annotations

from typing import Any

import pytest

from innoscope.toggles import catalog
from innoscope.toggles.model import Backend, ChangeRefused, NotOnThisServer, Risk, Toggle

NAMES = {
    "read_ahead", "read_ahead_linear", "read_ahead_random", "deadlock_detection", "adaptive_flushing",
    "dirty_page_limit", "io_capacity", "flush_neighbors", "spin_rounds", "spin_delay", "thread_concurrency",
    "change_buffering", "adaptive_hash_index", "purge_lag", "purge_lag_delay", "redo_size", "flush_sync",
    "relaxed_durability", "doublewrite", "monitor_output", "semaphore_kill_time", "max_connections",
    "release_memory",
}  # fmt: skip
SERVERS = {
    "5.0": ("mysql", (5, 0, 96)), "5.1": ("mysql", (5, 1, 73)), "5.5": ("mysql", (5, 5, 9)),
    "5.6": ("mysql", (5, 6, 24)), "5.7": ("mysql", (5, 7, 42)), "8.0": ("mysql", (8, 0, 46)),
    "9.7": ("mysql", (9, 7, 4)), "m10.3": ("mariadb", (10, 3, 39)), "m10.11": ("mariadb", (10, 11, 19)),
    "m11.4": ("mariadb", (11, 4, 5)), "m11.8": ("mariadb", (11, 8, 9)),
}  # fmt: skip
#: The backends of toggles for which a mistake would do harm, by toggle and server. "-" means refused.
BACKENDS = {
    "read_ahead": {
        "5.0": "memory", "5.1": "memory", "5.5": "memory", "5.6": "sql", "5.7": "sql", "9.7": "sql",
        "m10.3": "sql", "m10.11": "sql", "m11.4": "sql",
    },
    "read_ahead_linear": {"5.0": "-", "5.5": "memory", "5.6": "sql", "m11.8": "sql"},
    "read_ahead_random": {"5.0": "-", "5.1": "-", "5.5": "-", "5.6": "sql"},
    "deadlock_detection": {"5.0": "-", "5.6": "-", "5.7": "sql", "m10.3": "sql"},
    "dirty_page_limit": dict.fromkeys(SERVERS, "sql"),
    "io_capacity": {"5.0": "-", "5.5": "sql", "8.0": "sql", "m10.11": "sql"},
    "adaptive_hash_index": {"5.0": "-", "5.5": "sql", "9.7": "sql", "m11.8": "sql"},
    "doublewrite": {"5.0": "-", "5.6": "-", "9.7": "-", "m10.11": "-", "m11.4": "sql"},
    "redo_size": {"5.6": "-", "8.0": "sql", "m10.3": "-", "m10.11": "sql"},
    "thread_concurrency": {"5.0": "-", "5.5": "sql memory", "m10.3": "sql", "m10.11": "-"},
    "max_connections": dict.fromkeys(SERVERS, "sql memory"),
    "semaphore_kill_time": {"5.1": "-", "5.5": "memory", "9.7": "memory", "m10.11": "memory"},
    "monitor_output": {"5.1": "-", "5.5": "memory", "5.6": "sql memory", "m10.3": "sql"},
    "release_memory": dict.fromkeys(SERVERS, "-"),
    "relaxed_durability": {"5.0": "memory", "5.1": "sql", "9.7": "sql"},
}  # fmt: skip


@pytest.fixture(scope="module")
def toggles() -> dict[str, Toggle]:
    return catalog.load()


def backend_of(toggle: Toggle, server: str, kind: str) -> Backend:
    backends = catalog.generation(toggle, *SERVERS[server]).backends
    return next(backend for backend in backends if backend.kind == kind)


def test_the_catalog_has_these_toggles_and_two_are_dangerous(toggles: dict[str, Toggle]) -> None:
    assert toggles.keys() == NAMES
    assert {one.name for one in toggles.values() if one.risk is Risk.DANGEROUS} == {
        "relaxed_durability", "doublewrite",
    }  # fmt: skip


@pytest.mark.parametrize("name", BACKENDS)
def test_each_generation_has_its_backends(toggles: dict[str, Toggle], name: str) -> None:
    found = {}
    for server in BACKENDS[name]:
        try:
            backends = catalog.generation(toggles[name], *SERVERS[server]).backends
        except NotOnThisServer:
            found[server] = "-"
        else:
            found[server] = " ".join(backend.kind for backend in backends)

    assert found == BACKENDS[name]


def test_every_known_server_has_one_entry_per_toggle(toggles: dict[str, Toggle]) -> None:
    for toggle in toggles.values():
        for flavour, version in SERVERS.values():
            found = [one for one in toggle.generations if one.flavour == flavour and version in one.versions]
            assert len(found) == 1, (toggle.name, flavour, version)
            assert bool(found[0].backends) is (found[0].refused is None)


@pytest.mark.parametrize(
    ("flavour", "version", "words"),
    [
        ("mysql", (99, 0, 0), "not known for MySQL 99.0.0: the catalog covers 5.0 to "),
        ("mysql", (4, 1, 22), "not known for MySQL 4.1.22: the catalog covers 5.0"),
        ("mariadb", (99, 0, 0), "not known for MariaDB 99.0.0: the catalog covers 10.3 to "),
        ("mariadb", (10, 2, 44), "not known for MariaDB 10.2.44"),
        ("mysql", (), "the version of this MySQL is unknown"),
        ("drizzle", (7,), "no servers of this kind"),
    ],
)
def test_unknown_versions_and_servers_are_refused(
    toggles: Any, flavour: str, version: tuple[int, ...], words: str
) -> None:
    for toggle in toggles.values():
        with pytest.raises(NotOnThisServer, match=words):
            catalog.generation(toggle, flavour, version)


def test_refusals_and_forbidden_backends_have_a_reason(toggles: dict[str, Toggle]) -> None:
    with pytest.raises(
        NotOnThisServer, match=r"deadlock_detection: not on MySQL 5\.6\.24: .*cannot disable"
    ) as caught:
        catalog.generation(toggles["deadlock_detection"], "mysql", (5, 6, 24))
    assert (caught.value.exit_code, caught.value.remedy) == (15, "innoscope toggle show deadlock_detection")
    with pytest.raises(NotOnThisServer, match="by memory: pages that wait"):
        catalog.generation(toggles["doublewrite"], "mysql", (5, 5, 9))
    for name, server, words in (
        ("read_ahead", "5.7", "opening|open"),
        ("read_ahead", "m10.11", "stops checkpoints"),
        ("read_ahead", "m11.4", "stops checkpoints"),
        ("adaptive_hash_index", "9.7", "stale"),
        ("doublewrite", "m11.4", "write-fixed"),
        ("dirty_page_limit", "5.7", "double"),
        ("io_capacity", "5.6", "division"),
    ):
        never = catalog.generation(toggles[name], *SERVERS[server]).never["memory"]
        assert any(word in never for word in words.split("|")), name


def test_only_these_variables_are_written_to_memory(toggles: dict[str, Toggle]) -> None:
    written = {
        (one.setting.name, one.setting.size)
        for toggle in toggles.values()
        for generation in toggle.generations
        for backend in generation.backends
        if backend.kind == "memory"
        for one in backend.assignments
    }

    assert written == {
        ("srv_startup_is_before_trx_rollback_phase", 8), ("srv_n_spin_wait_rounds", 8),
        ("srv_spin_wait_delay", 8), ("srv_spin_wait_delay", 4), ("srv_thread_concurrency", 8),
        ("srv_adaptive_flushing", 1), ("srv_flush_neighbors", 8), ("srv_flush_log_at_trx_commit", 8),
        ("max_connections", 8), ("srv_fatal_semaphore_wait_threshold", 8),
        ("srv_print_innodb_monitor", 8), ("srv_print_innodb_monitor", 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "server", "kind", "value", "raws"),
    [
        ("read_ahead", "5.5", "memory", "off", (1,)),
        ("read_ahead", "5.5", "memory", "on", (0,)),
        ("read_ahead", "5.6", "sql", "off", (0, False)),
        ("read_ahead", "5.6", "sql", "on", (56, False)),
        ("flush_neighbors", "5.6", "sql", "extent", (2,)),
        ("change_buffering", "8.0", "sql", "inserts", ("inserts",)),
        ("relaxed_durability", "9.7", "sql", "on", (2, 0)),
        ("redo_size", "8.0", "sql", "512", (536870912,)),
        ("io_capacity", "5.6", "sql", "300", (300, 300)),
        ("max_connections", "5.6", "memory", "200", (200,)),
    ],
)
def test_values_are_translated_to_settings_and_back(
    toggles: dict[str, Toggle], name: str, server: str, kind: str, value: str, raws: tuple[Any, ...]
) -> None:
    backend = backend_of(toggles[name], server, kind)

    written = catalog.raws(backend, toggles[name], f" {value.upper()} ")
    assert written == raws
    assert [type(raw) for raw in written] == [type(raw) for raw in raws]
    assert catalog.spoken(backend, toggles[name], raws) == value


@pytest.mark.parametrize(
    ("name", "server", "now", "words"),
    [
        ("read_ahead", "5.6", (40, False), "on (40, off)"),
        ("read_ahead", "5.6", (0, True), "mixed (0, on)"),
        ("read_ahead", "5.6", (0, 0), "off"),
        ("read_ahead_linear", "5.6", (40,), "on (40)"),
        ("relaxed_durability", "5.6", (1, 0), "mixed (1, 0)"),
        ("relaxed_durability", "5.6", (0, 0), "on (0, 0)"),
        ("doublewrite", "m11.4", ("fast",), "on (fast)"),
        ("flush_neighbors", "5.6", (7,), "7"),
        ("dirty_page_limit", "9.7", (10.0, 90.0), "90"),
        ("dirty_page_limit", "9.7", (10.0, 99.999), "99.999"),
        ("redo_size", "8.0", (104857600,), "100"),
        ("redo_size", "8.0", (None,), "unknown"),
    ],
)
def test_settings_are_shown_as_values(
    toggles: dict[str, Toggle], name: str, server: str, now: tuple[Any, ...], words: str
) -> None:
    assert catalog.spoken(backend_of(toggles[name], server, "sql"), toggles[name], now) == words


@pytest.mark.parametrize(
    ("name", "server", "value", "words"),
    [
        ("read_ahead", "5.6", "maybe", "it takes on, off"),
        ("spin_delay", "9.7", "1001", "it takes 0 to 1000 pauses"),
        ("spin_delay", "m11.4", "6001", "it takes 0 to 6000 pauses"),
        ("io_capacity", "5.6", "0", "it takes 100 to 4294967295 writes per second"),
        ("dirty_page_limit", "5.6", "100", "it takes 0 to 99 percent"),
        ("max_connections", "5.6", "-5", "it takes 10 to 100000"),
        ("max_connections", "5.6", "1e3", "it takes 10 to 100000"),
        ("max_connections", "5.6", "٣٠٠", "it takes 10 to 100000"),
        ("max_connections", "5.6", "9" * 5000, "it takes 10 to 100000"),
        ("max_connections", "5.6", " ", "needs a value"),
        ("change_buffering", "5.1", "purges", "it takes none, inserts"),
    ],
)
def test_values_out_of_range_are_refused_with_the_range(
    toggles: dict[str, Toggle], name: str, server: str, value: str, words: str
) -> None:
    with pytest.raises(ChangeRefused, match=words) as caught:
        catalog.raws(backend_of(toggles[name], server, "sql"), toggles[name], value)
    assert (caught.value.remedy or "").startswith(f"innoscope toggle set {name}")
    assert len(caught.value.what) < 200


@pytest.mark.parametrize("server", SERVERS)
def test_release_memory_is_refused_with_alternatives(toggles: dict[str, Toggle], server: str) -> None:
    with pytest.raises(NotOnThisServer, match="a call inside a live server cannot be made safe") as caught:
        catalog.generation(toggles["release_memory"], *SERVERS[server])
    assert "MALLOC_TRIM_THRESHOLD_" in caught.value.what
    online = server not in ("5.0", "5.1", "5.5", "5.6")
    assert ("innodb_buffer_pool_size" in caught.value.what) == online
