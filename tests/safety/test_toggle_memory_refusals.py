"""Test that unsafe memory writes are refused with a reason and a remedy, and that nothing is written."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import InnoscopeError, NoRights, NoSuchProcess
from innoscope.target.discover import find_one
from innoscope.toggles.backends.memory import MemoryWriter
from innoscope.toggles.model import (
    Assignment,
    Backend,
    ChangeRefused,
    ChangeStep,
    NotOnThisServer,
    ToggledVariable,
)
from safety.pretender import Pretender
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from innoscope.target.model import Target

MAX_CONNECTIONS = ToggledVariable("max_connections", "unsigned", 8, (1, 100_000))
NOBODY = 65534
OLD, STRIPPED = "mysql-5.5.9", "mariadb-10.11"

#: Two source files with a variable of the same name, and one with a constant.
TWICE = """
static volatile unsigned long twice = 1;
unsigned long FUNCTION(void) { return twice; }
"""
MAIN = """
#include <unistd.h>
unsigned long one(void), two(void);
const unsigned long fixed = 7;
struct pair { unsigned a, b; } pair = {1, 1};
int main(void) { sleep(600 + one() + two() + fixed + pair.a); return 0; }
"""


@pytest.fixture(scope="module", params=[OLD, STRIPPED])
def either(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server: first one with debug information, then a stripped one."""
    with Server(request.param) as server:
        yield server


@pytest.fixture
def target(either: Server) -> Target:
    return find_one(pid=either.pid)


def prepare(target: Target, setting: ToggledVariable, value: Any = 77, **options: str) -> ChangeStep:
    with MemoryWriter(target, **options) as writer:
        [step] = writer.prepare(Backend("memory", (Assignment(setting),)), [value])
        return step


def max_connections(server: Server) -> int:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_connections")
        return int(cursor.fetchall()[0][0])


def assert_refused(kind: type[InnoscopeError], words: str, attempt: Callable[[], object]) -> None:
    with pytest.raises(kind, match=words) as refused:
        attempt()
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (replace(MAX_CONNECTIONS, size=1), "8 bytes in this build, but 1"),
        (replace(MAX_CONNECTIONS, size=4), "8 bytes in this build, but 4"),
        (replace(MAX_CONNECTIONS, plausible=(1, 2)), "should be from 1 to 2"),
        (replace(MAX_CONNECTIONS, kind=None), "does not define|in the catalog"),
        (ToggledVariable("innodb_adaptive_flushing", "unsigned", 8, (0, 1)), "1 bytes in this build, but 8"),
        (ToggledVariable("innodb_adaptive_flushing", "float", 8), "bool .* float in the catalog"),
    ],
)
def test_a_type_or_value_that_differs_from_the_catalog_is_refused(
    target: Target, setting: ToggledVariable, words: str
) -> None:
    assert_refused(ChangeRefused, words, lambda: prepare(target, setting, 1))


def test_the_type_is_checked_by_debug_information_or_the_variables_table(
    either: Server, target: Target
) -> None:
    """Use the dirty page limit, which is an integer in the old server and a double in the new one."""
    if either.name == OLD:
        wrong = ToggledVariable("srv_max_buf_pool_modified_pct", "float", 8)
        assert_refused(ChangeRefused, "is of type unsigned long", lambda: prepare(target, wrong))
        flag = ToggledVariable("srv_adaptive_flushing", "unsigned", 8)
        assert_refused(ChangeRefused, "1 bytes in this build, but 8", lambda: prepare(target, flag, 1))
    else:
        wrong = ToggledVariable(
            "srv_max_buf_pool_modified_pct", "unsigned", 8, None, "innodb_max_dirty_pages_pct"
        )
        assert_refused(ChangeRefused, "float64", lambda: prepare(target, wrong))


def test_a_missing_variable_is_refused(target: Target) -> None:
    assert_refused(
        NotOnThisServer, "no symbol srv_nothing", lambda: prepare(target, ToggledVariable("srv_nothing"))
    )


@pytest.mark.parametrize("value", ["on", 0.5, -1, 1 << 64, None])
def test_a_value_that_does_not_fit_the_type_is_refused(either: Server, target: Target, value: Any) -> None:
    before = max_connections(either)
    with MemoryWriter(target) as writer:
        step = replace(prepare(target, MAX_CONNECTIONS), new=value)
        assert_refused(ChangeRefused, "max_connections", lambda: writer.write(step))
    assert max_connections(either) == before


def test_a_value_that_changed_since_the_plan_is_refused(either: Server, target: Target) -> None:
    step = prepare(target, MAX_CONNECTIONS)
    with contextlib.closing(either.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 123")
    with MemoryWriter(target) as writer:
        assert_refused(ChangeRefused, "is 123 now, not", lambda: writer.write(step))
        assert writer.read(step) == 123 == max_connections(either)
        writer.write(replace(step, old=123, new=step.old))
    assert max_connections(either) == step.old


def test_another_build_is_refused(target: Target) -> None:
    step = prepare(target, MAX_CONNECTIONS)
    other = replace(target, build_id="00" * 20)
    assert_refused(ChangeRefused, "not 0000", lambda: prepare(other, MAX_CONNECTIONS))
    with MemoryWriter(other) as writer:
        assert_refused(ChangeRefused, "a different build", lambda: writer.write(step))
    with MemoryWriter(target) as writer:
        assert writer.read(step) == step.old


def test_another_process_is_refused(target: Target) -> None:
    step = prepare(target, MAX_CONNECTIONS)
    other = replace(target, start_time=target.start_time + 1)
    assert_refused(NoSuchProcess, "does not exist", lambda: prepare(other, MAX_CONNECTIONS))
    with MemoryWriter(other) as writer:
        assert_refused(NoSuchProcess, "does not exist", lambda: writer.write(step))
    with MemoryWriter(target) as writer:
        assert writer.read(step) == step.old


@pytest.mark.parametrize("change", [{"address": 0x1000}, {"address": None}, {"type": None}, {"size": 16}])
def test_a_tampered_step_is_refused(target: Target, change: dict[str, Any]) -> None:
    step = replace(prepare(target, MAX_CONNECTIONS), **change)
    with MemoryWriter(target) as writer:
        assert_refused(ChangeRefused, "max_connections", lambda: writer.write(step))


def test_an_address_in_code_or_unaligned_is_refused(target: Target) -> None:
    step = prepare(target, MAX_CONNECTIONS)
    assert step.address is not None
    with MemoryWriter(target) as writer:
        astride = replace(step, address=step.address + 4)
        assert_refused(ChangeRefused, "not aligned", lambda: writer.write(astride))
        [code] = [one for one in _code(target) if "mariadbd" in one or "mysqld" in one][:1]
        inside = replace(step, address=int(code.partition("-")[0], 16))
        assert_refused(ChangeRefused, "writable memory", lambda: writer.write(inside))


def _code(target: Target) -> list[str]:
    with open(f"/proc/{target.pid}/maps") as maps:  # noqa: PTH123
        return [line for line in maps if " r-xp " in line]


def test_a_write_without_privileges_is_refused(either: Server, target: Target) -> None:
    step = prepare(target, MAX_CONNECTIONS)
    with MemoryWriter(target) as writer:
        os.seteuid(NOBODY)
        try:
            assert_refused(NoRights, "cannot write to the memory", lambda: writer.write(step))
        finally:
            os.seteuid(0)
    assert max_connections(either) == step.old


def test_a_server_that_has_ended_is_refused(target: Target) -> None:
    """End the server between plan and write. Another server runs, and must not be changed."""
    with Server(STRIPPED) as server:
        gone = find_one(pid=server.pid)
        step = prepare(gone, MAX_CONNECTIONS)
        server.kill()
        with MemoryWriter(gone) as writer:
            assert_refused(NoSuchProcess, "has exited", lambda: writer.write(step))
            assert_refused(NoSuchProcess, "has exited", lambda: writer.read(step))
    assert replace(find_one(pid=target.pid), threads=0) == replace(target, threads=0)


def test_our_reader_and_gdb_prepare_the_same_step(either: Server, target: Target) -> None:
    own = prepare(target, MAX_CONNECTIONS, gdb="/nonexistent/gdb")
    by_gdb = prepare(target, MAX_CONNECTIONS)
    assert replace(own, origin="") == replace(by_gdb, origin="")
    if either.name == OLD:
        assert (own.origin, by_gdb.origin) == (
            "debug information, read without gdb",
            "debug information, read by gdb",
        )


@pytest.fixture(scope="module")
def pretender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretender]:
    """Compile and start a C program under a server's name."""
    folder: Path = tmp_path_factory.mktemp("twice")
    (folder / "main.c").write_text(MAIN)
    for name in ("one", "two"):
        (folder / f"{name}.c").write_text(TWICE.replace("FUNCTION", name))
    command = ["gcc", "-g", "-O0", "-o", "mysqld", "main.c", "one.c", "two.c"]
    subprocess.run(command, cwd=folder, check=True)
    with Pretender(folder) as pretender:
        yield pretender


@pytest.mark.parametrize("gdb", ["gdb", "/nonexistent/gdb"])
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (ToggledVariable("twice", "unsigned", 8), "2 times"),
        (ToggledVariable("fixed", "unsigned", 8), "writable memory"),
        (ToggledVariable("pair", "unsigned", 8), "is of type"),
    ],
)
def test_ambiguous_constant_and_structured_symbols_are_refused(
    pretender: Pretender, setting: ToggledVariable, words: str, gdb: str
) -> None:
    target = find_one(pid=pretender.pid)
    assert_refused(ChangeRefused, words, lambda: prepare(target, setting, 1, gdb=gdb))
