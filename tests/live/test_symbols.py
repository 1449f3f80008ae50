"""Test that a symbol pack of 0.5 MB provides all symbols that a stripped server lacks."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from innoscope import _native
from innoscope.cli.symbol_pack import memory_settings
from innoscope.common.cache import Cache
from innoscope.common.errors import BadFile
from innoscope.memory import catalog as memory_catalog
from innoscope.memory.layout import Debug, MemoryLayout, learn, root
from innoscope.memory.locks import layout as lock_layout
from innoscope.memory.locks.layout import TICKETS
from innoscope.memory.reader import MemoryReader
from innoscope.memory.statements import layout as statement_layout
from innoscope.probes.catalog import default_catalog
from innoscope.probes.symbol_resolution import Placement, place
from innoscope.target.discover import find_one
from innoscope.target.symbols import pack_source, packs
from innoscope.target.symbols.pack_source import PackSource
from innoscope.toggles import locate_setting
from innoscope.toggles.backends.memory import MemoryWriter
from innoscope.toggles.model import Assignment, Backend, ToggledVariable
from live.changing import shown
from live.stripped import Split, awake
from safety.command import assert_one_clear_error, innoscope
from servers import Server
from workloads import RowLock, Sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.target.model import Target

NAME = "mariadb-11.4.5"
SLEEPERS, WAITERS = 5, 5
LARGEST, LONGEST_S = 2 << 20, 60.0
MUTANTS, MUTANT_S, MUTANT_BYTES = 300, 0.05, 100 << 20


class Scene(NamedTuple):
    """A stripped server under load, and the same build with symbols. ``packs`` is a directory with packs."""

    split: Split
    stripped: Server
    whole: Server
    packs: Path
    debug: Path  # a directory laid out like /usr/lib/debug

    @property
    def pack(self) -> Path:
        return self.packs / f"{self.split.build_id}.pack"

    @property
    def target(self) -> Target:
        return find_one(self.stripped.pid)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("packs")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        split = Split(NAME, folder)
        made = folder / "symbols.d"
        made.mkdir()
        stripped = stack.enter_context(split.server())
        result = innoscope("symbols", "export", "--file", split.debug, "--output", made, "--json")
        assert (result.returncode, result.stderr) == (0, "")
        made_of = json.loads(result.stdout)
        assert made_of["bytes"] <= LARGEST
        assert made_of["seconds"] <= LONGEST_S
        assert made_of["server"] == f"mariadb {Server(NAME).spec.version}-MariaDB"
        patch.setenv("INNOSCOPE_SYMBOLS", str(made))
        stack.enter_context(Sleep(stripped, SLEEPERS))
        stack.enter_context(RowLock(stripped, WAITERS))
        whole = stack.enter_context(Server(NAME))
        debug = stack.enter_context(split.by_build_id(folder / "debug"))
        yield Scene(split, stripped, whole, made, debug)


def _stacks(scene: Scene, *options: object) -> dict[int, dict[str, Any]]:
    result = innoscope("stacks", "--pid", scene.stripped.pid, "--format", "json", *options)
    assert (result.returncode, result.stderr) == (0, "")
    dump = json.loads(result.stdout)
    assert not [note for note in dump["notes"] if "shown without names" in note]
    return {thread["tid"]: thread for thread in dump["threads"]}


def _places(thread: dict[str, Any]) -> list[tuple[str, int]]:
    return [(frame["module"], frame["offset"]) for frame in thread["frames"]]


def _unchanged(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether the thread had the same stack, state and trust level in both snapshots."""
    return _places(one) == _places(other) and all(one[key] == other[key] for key in ("state", "trust"))


def test_stacks_equal_those_with_the_debug_file(scene: Scene) -> None:
    """Take two snapshots of one process: with the pack, and with the debug file."""
    ours = _stacks(scene)
    theirs = _stacks(scene, "--debug-dir", scene.debug)

    # A thread that woke up in between can have the same stack, but a different state and thus a different
    # wait class.
    still = [tid for tid in ours.keys() & theirs.keys() if _unchanged(ours[tid], theirs[tid])]
    assert len(still) > SLEEPERS + WAITERS + 5
    for tid in still:
        assert ours[tid]["frames"] == theirs[tid]["frames"]
        assert ours[tid]["wait"] == theirs[tid]["wait"]
    waits = [thread["wait"] for thread in ours.values()]
    asleep = SLEEPERS - awake(ours.values())
    assert (waits.count("user_sleep"), waits.count("row_lock")) == (asleep, WAITERS)


def test_names_and_sizes_of_functions_equal_the_debug_files(scene: Scene) -> None:
    ours = _native.CodeFile(scene.stripped.pid)
    assert (ours.symbols_from, ours.problem) == ("symbol-pack", None)
    theirs = _native.CodeFile(scene.stripped.pid, debug_dirs=[str(scene.debug)])
    assert theirs.symbols_from == "debug-file"

    functions = ours.functions([""])
    assert functions == theirs.functions([""])
    omitted = ("_ZTI", "_ZTS", "_ZTT", "_ZTC", "_ZGV")
    assert ours.variables([""]) == [
        each for each in theirs.variables([""]) if not each.symbol.startswith(omitted)
    ]
    assert [each for each in ours.variables([""]) if each.symbol == TICKETS]


def test_lock_owners_and_statements_are_found(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the pack has the same locations as the debug information."""
    found = []
    for server in (scene.stripped, scene.whole):
        # Both servers have the same build-id, so they would share the cache.
        monkeypatch.setattr(lock_layout, "_CACHE", Cache("owners", 4, tmp_path / str(server.pid)))
        locks, statements = (one.learn(find_one(server.pid)) for one in (lock_layout, statement_layout))
        assert statements.part is not None, statements.source
        assert not locks.why
        parts = (locks.sessions, locks.metadata, locks.latches, locks.rows, statements.part)
        found.append([part and (part.options, part.members, part.roots.keys()) for part in parts])
    assert found[0] == found[1]


def _placed(placement: Placement) -> dict[str, object]:
    """Return each probe's locations or, if it has none, the reason, without process-specific values."""
    possible = {each.probe.name: (each.places, each.note) for each in placement.placed}
    return possible | {each.probe.name: (each.reason, each.instead) for each in placement.missing}


def test_probes_have_the_same_places(scene: Scene) -> None:
    """Check that probes are placed alike on the stripped and the unstripped server.

    In the stripped server, dead copies of functions are recognized from the code alone.
    """
    probes = list(default_catalog().probes.values())
    ours, theirs = (place(find_one(server.pid), probes) for server in (scene.stripped, scene.whole))

    assert (ours.symbols_from, theirs.symbols_from) == ("symbol-pack", "symtab")
    assert len(ours.placed) > 20
    assert _placed(ours) == _placed(theirs)


def _attached(server: Server) -> dict[str, str]:
    result = innoscope("probes", "measure", "--pid", server.pid, "--seconds", 0.5, "--budget", 1, "--json")
    assert result.returncode == 0, result.stderr
    return {each["probe"]: each["state"] for each in json.loads(result.stdout)["probes"]}


def test_same_probes_attach(scene: Scene) -> None:
    ours = _attached(scene.stripped)

    assert ours == _attached(scene.whole)
    assert sum(state == "attached" for state in ours.values()) > 20


def _learnt(scene: Scene, debug: Debug, folder: Path) -> MemoryLayout:
    known = memory_catalog.load()
    names = sorted({root(path) for path in known.paths})
    return learn(scene.target, names, known.paths, debug, Cache("layouts", 4, folder))


def test_same_values_are_read_from_memory(scene: Scene, tmp_path: Path) -> None:
    whole = Debug(dirs=(str(scene.debug),))
    ours, theirs = _learnt(scene, Debug(), tmp_path / "ours"), _learnt(scene, whole, tmp_path / "theirs")
    assert (ours.symbols_from, ours.from_pack) == ("symbol-pack", True)
    assert replace(ours, symbols_from=theirs.symbols_from, from_pack=False) == theirs

    read = [
        MemoryReader(scene.target, cache=tmp_path / str(number), debug=debug)
        for number, debug in enumerate((Debug(), whole))
    ]
    values, expected = (reader.read() for reader in read)
    assert values.keys() == expected.keys()
    assert len(values) > 20
    by_pack, by_file = ([one.source for one in reader.explain()] for reader in read)
    assert [source and source.replace("a symbol pack", "debug information") for source in by_pack] == by_file


def _resolved(server: Server) -> dict[str, object]:
    """Return each toggle setting's location in the file or, if it was not found, the reason."""
    target = find_one(server.pid)
    bias = locate_setting.learn(target, []).bias
    found = locate_setting.find_all(target, memory_settings())
    return {
        setting.name: (place.address - bias, place.size, place.type)
        if isinstance(place, locate_setting.SettingLocation)
        else str(place).replace(target.executable, "it")
        for setting, place in found.items()
    }


def test_settings_of_toggles_have_the_same_places(scene: Scene) -> None:
    ours = _resolved(scene.stripped)

    assert ours == _resolved(scene.whole)
    places = [each for each in ours.values() if isinstance(each, tuple)]
    assert len(places) > 5


def test_value_is_written_at_the_place_in_the_pack(scene: Scene) -> None:
    setting = ToggledVariable("srv_n_spin_wait_rounds", "unsigned", 8, (0, 100_000))
    [before] = shown(scene.stripped, ["innodb_sync_spin_loops"])
    with MemoryWriter(scene.target) as writer:
        [step] = writer.prepare(Backend("memory", (Assignment(setting),)), [77])
        assert (step.old, step.origin) == (before, "symbol pack")
        writer.write(step)
        assert shown(scene.stripped, ["innodb_sync_spin_loops"]) == [77]
        writer.write(replace(step, old=77, new=before))
    assert shown(scene.stripped, ["innodb_sync_spin_loops"]) == [before]


def test_toggle_list_is_the_same(scene: Scene) -> None:
    ours, theirs = (
        json.loads(innoscope("toggle", "list", "--pid", server.pid, "--user", "root", "--json").stdout)
        for server in (scene.stripped, scene.whole)
    )
    assert ours == theirs


def test_commands_name_the_pack_as_the_source(scene: Scene) -> None:
    [target] = [
        each
        for each in json.loads(innoscope("targets", "--json").stdout)
        if each["pid"] == scene.stripped.pid
    ]
    assert target["symbols"] == "symbol-pack"
    doctor = innoscope("doctor", "--pid", scene.stripped.pid).stdout
    [line] = [line for line in doctor.splitlines() if "names of the server" in line]
    assert f"a symbol pack ({scene.pack})" in line
    listed = json.loads(innoscope("symbols", "list", "--json").stdout)
    [entry] = listed
    assert set(entry["fits"]) >= {scene.stripped.pid, scene.whole.pid}
    assert entry["problem"] is None


def test_file_to_export_a_pack_from_is_found(scene: Scene) -> None:
    found = pack_source.of_server(find_one(scene.whole.pid))
    assert found == PackSource(
        Path(f"/proc/{scene.whole.pid}/exe"), "mariadbd", f"mariadb {scene.target.version_text}"
    )

    with pytest.raises(BadFile, match="is stripped, and its debug file was not found") as caught:
        pack_source.of_server(scene.target)
    assert "--file FILE" in str(caught.value.remedy)
    file = pack_source.of_server(scene.target, [str(scene.debug)]).file
    assert file.samefile(scene.split.debug)


def _other_build(data: bytes, _: Path) -> bytes:
    """Return an intact pack for another build, with a valid checksum."""
    pack = bytearray(data)
    unpacked = int.from_bytes(pack[20:24], "little")
    return _native.pack_seal("00" * 20, bytes(pack[96:]), unpacked)


def _writable(data: bytes, path: Path) -> bytes:
    path.chmod(0o666)
    return data


def _foreign(data: bytes, path: Path) -> bytes:
    os.chown(path, 9999, 9999)
    return data


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(_other_build, "is for another build", id="another build"),
        pytest.param(lambda data, _: data[:-1000], "has the wrong size", id="cut off"),
        pytest.param(
            lambda data, _: data[:5000] + b"damage" + data[5006:], "checksum is wrong", id="damaged"
        ),
        pytest.param(_writable, "is writable by others", id="writable"),
        pytest.param(_foreign, "is owned by user 9999", id="foreign"),
    ],
)
def test_refused_pack_is_reported_once_and_the_search_continues(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes, Path], bytes], words: str,
) -> None:  # fmt: skip
    bad = tmp_path / scene.pack.name
    bad.touch()
    bad.write_bytes(damage(scene.pack.read_bytes(), bad))
    monkeypatch.setenv("INNOSCOPE_SYMBOLS", str(tmp_path))
    pid = scene.stripped.pid

    for command in (["stacks"], ["probes", "list"], ["toggle", "list"], ["doctor"], ["targets"]):
        of = [] if command == ["targets"] else ["--pid", pid]
        result = innoscope(*command, *of)
        output = result.stdout + result.stderr
        lines = output.splitlines()
        if not of:  # other tests may run stripped servers of the same build
            lines = [line for line in lines if line.split()[:1] == [str(pid)]]
        complaints = [line for line in lines if words in line]
        assert complaints == [line for line in lines if str(bad) in line], output
        assert len(complaints) == 1, output
        assert "Traceback" not in output
    assert "dynsym" in result.stdout
    values = MemoryReader(find_one(pid), cache=tmp_path / "cache").read()
    assert values, "the server's own tables are still read"
    if words != "is for another build":
        assert_one_clear_error(innoscope("symbols", "check", bad), BadFile.exit_code, words)
    checked = innoscope("symbols", "check", bad, "--pid", pid)
    assert_one_clear_error(checked, BadFile.exit_code, words)


def _read(pack: Path) -> tuple[bool, float]:
    """Return whether a pack is rejected, and the CPU time that this takes.

    Use the shortest of three times, because time in which a hypervisor runs other machines can count as CPU
    time.
    """
    rejected, took = False, []
    for _ in range(3):
        began = time.thread_time()
        try:
            packs.read_layout(packs.open_pack(str(pack)))
        except BadFile:
            rejected = True
        took.append(time.thread_time() - began)
    return rejected, min(took)


def test_hundreds_of_damaged_packs_are_cheap_to_refuse(scene: Scene, tmp_path: Path) -> None:
    """Check the time and the memory needed to reject packs with a wrong checksum and with a valid one."""
    whole = scene.pack.read_bytes()
    body, unpacked = whole[96:], int.from_bytes(whole[20:24], "little")
    draw, mutant = random.Random(5), tmp_path / "mutant.pack"  # noqa: S311
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, refused = 0.0, [0, 0]
    for number in range(MUTANTS):
        fits = number % 2  # whether the checksum is valid
        data = bytearray(body if fits else whole)
        for _ in range(draw.choice((1, 4, 64))):
            data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        if number % 5 == 0:
            del data[draw.randrange(len(data)) :]
        mutant.write_bytes(_native.pack_seal(scene.split.build_id, bytes(data), unpacked) if fits else data)
        rejected, seconds = _read(mutant)
        refused[fits] += rejected
        slowest = max(slowest, seconds)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert refused[False] == MUTANTS / 2, "the checksum must detect all of them"
    assert refused[True] > MUTANTS / 2 * 0.9
    assert slowest < MUTANT_S
    assert grown < MUTANT_BYTES
