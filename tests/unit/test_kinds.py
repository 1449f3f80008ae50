"""Each thread recorded in tests/golden is assigned the right kind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from golden.store import read, servers, unpack
from innoscope.common.errors import BadFile
from innoscope.metrics import registry
from innoscope.metrics.collectors.kinds import KINDS, default_kinds, load
from innoscope.sampling.model import Frame
from unit.snapshots import frames

if TYPE_CHECKING:
    from pathlib import Path

#: A server whose InnoDB has no symbols and whose threads are all named mariadbd. Only threads of the SQL
#: layer and of the thread pool can be recognized on it.
STRIPPED = "mariadb-10.11"


@pytest.mark.parametrize("server", servers())
def test_recorded_threads_have_a_kind(server: str) -> None:
    kinds: Counter[str] = Counter()
    for item in read(server):
        kinds[default_kinds().of(unpack(item.frames), item.comm).name] += 1

    assert kinds["other"] == 0 or server == STRIPPED
    assert {"connection", "io", "replication", "background"} <= kinds.keys()
    if server != STRIPPED:
        assert {"master", "io"} <= kinds.keys()
    if server not in (STRIPPED, "mysql-5.5.9"):  # in 5.5, the master thread flushes pages and purges
        assert {"page_cleaner", "purge"} <= kinds.keys()


@pytest.mark.parametrize(
    ("stack", "comm", "kind", "sure"),
    [
        (("my_net_read", "do_command", "handle_one_connection"), "mysqld", "connection", True),
        (("trx_purge", "srv_master_do_purge", "srv_master_thread"), "mysqld", "master", True),
        (("trx_purge", "srv_do_purge.isra.0", "srv_purge_coordinator_thread"), "mysqld", "purge", True),
        (("fil_flush", "log_io_complete", "fil_aio_wait", "io_handler_thread"), "mysqld", "io", True),
        (("", "", "libstdc++.so.6!"), "ib_pg_flush_co", "page_cleaner", True),
        (("", "", "libstdc++.so.6!"), "ib_log_flush", "redo", True),
        (("", ""), "ib_something_new", "background", True),
        (("", "purge_coordinator_callback", "tpool::task_group::execute"), "mariadbd", "purge", True),
        (("", "tpool::task_group::execute"), "mariadbd", "background", False),
        (("", "", "libc.so.6!start_thread"), "mariadbd", "other", False),
        ((), "mysqld", "other", False),
        (("mysql_binlog_send", "dispatch_command", "do_command"), "mysqld", "connection", True),
    ],
)  # fmt: skip
def test_kind_follows_from_the_outermost_function_then_the_name(
    stack: tuple[str, ...], comm: str, kind: str, sure: bool
) -> None:
    found = default_kinds().of(frames(*stack), comm)

    assert (found.name, found.sure) == (kind, sure)


def test_kinds_match_the_metric() -> None:
    (label,) = registry.default()["mysqld_cpu_seconds"].labels

    assert label.values == KINDS


def good() -> dict[str, Any]:
    return {"version": 1, "kinds": {"io": {"frames": ["a*"], "comm": []}}, "pool": []}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version: Invalid enum value 2"),
        ({"kinds": []}, "kinds: Expected `object`, got `array`"),
        ({"pool": "x"}, "pool: Expected `array`, got `str`"),
        ({"pool": ["/(/"]}, r"malformed pattern '/\(/'"),
        ({"kinds": {"io": {"frames": ["/a{99999999999}/"], "comm": []}}}, "kinds.io: malformed pattern"),
        ({"more": 1}, "Object contains unknown field `more`"),
        ({"kinds": {"oi": {"frames": [], "comm": []}}}, "kinds.oi: Invalid enum value 'oi'"),
        ({"kinds": {"io": {"frames": []}}}, "kinds.io: Object missing required field `comm`"),
        ({"kinds": {"io": {"frames": [], "comm": [], "x": []}}}, "kinds.io: .* unknown field `x`"),
        ({"kinds": {"io": {"frames": [1], "comm": []}}}, r"kinds.io.frames\[0\]: Expected `str`, got `int`"),
    ],
)
def test_an_invalid_catalog_is_one_clear_error(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "threads.yaml"
    path.write_text(yaml.safe_dump(good() | change))

    with pytest.raises(BadFile, match=rf"threads\.yaml, line \d+: {words}"):
        load(path)


def test_an_empty_list_matches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "threads.yaml"
    path.write_text(
        yaml.safe_dump({"version": 1, "kinds": {"io": {"frames": ["a*"], "comm": []}}, "pool": []})
    )

    assert load(path).of((Frame(None, "", 0),), "").name == "other"
