"""Test that a debug file, found by build-id, debuglink or debuginfod, names a stripped server's functions."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from live.stripped import Split, awake, debuginfod
from safety.command import DEADLINE_S, INNOSCOPE
from workloads import RowLock, Sleep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "mariadb-11.4.5"
SLEEPERS, WAITERS = 5, 5

#: Functions whose names are only in ``.symtab``, and the number of threads in each.
KNOWN = {"Item_func_sleep::val_int": SLEEPERS, "lock_wait": WAITERS}


class Stripped(NamedTuple):
    """The running server and its debug file."""

    split: Split
    pid: int


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stripped]:
    folder = tmp_path_factory.mktemp("stripped")
    with ExitStack() as stack:
        split = Split(NAME, folder)
        server = stack.enter_context(split.server())
        stack.enter_context(Sleep(server, SLEEPERS))
        stack.enter_context(RowLock(server, WAITERS))
        yield Stripped(split, server.pid)


def _innoscope(pid: int, *options: object, **environment: str) -> str:
    """Run ``innoscope stacks``, without debuginfod unless ``environment`` configures it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEBUGINFOD_")}
    result = subprocess.run(
        [INNOSCOPE, "stacks", "--pid", str(pid), *map(str, options)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env=inherited | environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def _stacks(pid: int, *options: object, **environment: str) -> dict[str, Any]:
    return dict(json.loads(_innoscope(pid, "--format", "json", *options, **environment)))


def _functions(thread: dict[str, Any]) -> list[str | None]:
    return [frame["function"] for frame in thread["frames"] if frame["module"] == "mariadbd"]


def _named(dump: dict[str, Any]) -> tuple[int, int]:
    """Return (named, total): how many frames in the server's own code have a name, and how many there are."""
    names = [name for thread in dump["threads"] for name in _functions(thread)]
    return sum(name is not None for name in names), len(names)


def _judge(dump: dict[str, Any]) -> None:
    named, frames = _named(dump)
    for function, threads in KNOWN.items():
        assert sum(function in _functions(thread) for thread in dump["threads"]) == threads, function
    assert named >= 0.99 * frames
    assert not [note for note in dump["notes"] if "shown without names" in note]
    waits = [thread["wait"] for thread in dump["threads"]]
    asleep = SLEEPERS - awake(dump["threads"])
    assert (waits.count("user_sleep"), waits.count("row_lock")) == (asleep, WAITERS)


def test_one_note_has_the_remedy_without_a_debug_file(stripped: Stripped) -> None:
    dump = _stacks(stripped.pid)

    named, frames = _named(dump)
    notes = [note for note in dump["notes"] if "shown without names" in note]
    assert named < 0.9 * frames
    assert dump["target"]["symbols"] == "dynsym"
    [note] = notes
    assert "\n" not in note
    assert "DEBUGINFOD_URLS" in note
    build_id = stripped.split.build_id
    assert f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug" in note

    text = _innoscope(stripped.pid)
    assert len([line for line in text.splitlines() if "DEBUGINFOD_URLS" in line]) == 1


def test_names_by_build_id(stripped: Stripped, tmp_path: Path) -> None:
    with stripped.split.by_build_id(tmp_path / "debug") as folder:
        _judge(_stacks(stripped.pid, "--debug-dir", folder))


def test_names_by_debuglink(stripped: Stripped) -> None:
    with stripped.split.by_link():
        _judge(_stacks(stripped.pid))


def test_names_by_debuginfod(stripped: Stripped, tmp_path: Path) -> None:
    """Download the debug file, then stop debuginfod and use the file from the cache."""
    settings = {"DEBUGINFOD_CACHE_PATH": str(tmp_path / "cache"), "DEBUGINFOD_TIMEOUT": "30"}
    split = stripped.split
    with debuginfod(split.debug.parent, tmp_path / "debuginfod.sqlite", split.build_id) as url:
        _judge(_stacks(stripped.pid, DEBUGINFOD_URLS=url, **settings))
    _judge(_stacks(stripped.pid, DEBUGINFOD_URLS=url, **settings))


def test_option_disables_debuginfod(stripped: Stripped, tmp_path: Path) -> None:
    """Check that ``--no-debuginfod`` overrides the environment: nothing connects to the configured URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        cache = tmp_path / "cache"
        dump = _stacks(stripped.pid, "--no-debuginfod", DEBUGINFOD_URLS=url, DEBUGINFOD_CACHE_PATH=str(cache))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()

    named, frames = _named(dump)
    assert named < 0.9 * frames
    assert not cache.exists()
