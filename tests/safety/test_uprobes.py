"""Test that uprobes are safe for processes with exceptions, shared files and replaced executables."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from innoscope._native import CodeFile, Uprobe
from innoscope.common.errors import NoSuchProcess
from innoscope.common.samples import Histogram, by_series
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes.attachment import Attachment
from innoscope.probes.loader import compile_and_load
from innoscope.probes.symbol_resolution import Placed
from innoscope.sampling.engine import Engine
from innoscope.sampling.model import Trust
from innoscope.target.discover import find_one
from safety.contained import installed_in
from safety.leftovers import breakpoints, orphans
from safety.privileges import denying
from servers import Keeper, Server, fetch
from waiting import until, until_asleep
from workloads import Fsync, Sleep

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A minimal BPF program. Like all our programs, it has a map.
_TEXT = """
#include <uapi/linux/ptrace.h>
BPF_ARRAY(seen, u64, 1);
int probe(struct pt_regs *ctx)
{
    u32 key = 0;
    u64 *count = seen.lookup(&key);
    if (count)
        __sync_fetch_and_add(count, 1);
    return 0;
}
"""


class _Small:
    """The test program. ``call`` runs its two functions once."""

    def __init__(self, folder: Path) -> None:
        program = folder / "crossed"
        source = Path(__file__).with_name("crossed.cpp")
        subprocess.run(["g++", "-O1", "-o", program, source], check=True)
        self._keeper = Keeper()
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._keeper.watch(self.process.pid)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def call(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._line()

    def probe(self, program: int, function: str, *, on_return: bool) -> Uprobe:
        file = CodeFile(self.process.pid)
        [own] = [each for each in file.functions([function]) if each.symbol == function]
        return Uprobe(program, file.path, own.offset, self.process.pid, on_return=on_return)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._keeper.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[_Small]:
    program = _Small(tmp_path)
    yield program
    program.close()


@pytest.fixture(scope="module")
def program() -> Iterator[int]:
    loaded = compile_and_load(_TEXT, ["probe"], ["seen"])
    yield loaded.programs["probe"]
    loaded.close()


def test_an_exception_through_a_return_probe_kills_the_process(small: _Small, program: int) -> None:
    """Force a return probe onto a function that an exception crosses; the catalog excludes such functions."""
    assert small.call() == "1"
    probe = small.probe(program, "crossed", on_return=True)
    small.call()
    assert small.process.wait(timeout=60) == -signal.SIGABRT
    probe.detach()


def test_entry_probes_and_return_probes_without_exceptions_are_harmless(small: _Small, program: int) -> None:
    probes = [
        small.probe(program, "crossed", on_return=False),
        small.probe(program, "plain", on_return=False),
        small.probe(program, "plain", on_return=True),
    ]
    assert [small.call() for _ in range(100)] == [str(number) for number in range(1, 101)]
    for probe in probes:
        probe.detach()
    assert small.call() == "101"


def test_a_return_probe_without_a_reason_is_refused(server_5_6: Server) -> None:
    """Check that the probe is not attached even if the catalog loader's check is bypassed."""
    attachment = Attachment(find_one(server_5_6.pid), frozenset({"row_lock"}))
    try:
        [point] = attachment.points
        site = point.placed.site
        unsafe = structs.replace(site, returns=None)
        point.placed = Placed(point.placed.probe, unsafe, point.placed.path, point.placed.places)
        attachment.attach()
        assert not point.attached
        assert point.problem is not None
        assert "exception" in point.problem
    finally:
        attachment.close()


def _verified() -> dict[int, int]:
    """Return the number of instructions that the verifier processed, by id of each program open here."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor that iterdir used is already closed
            info = (Path("/proc/self/fdinfo") / descriptor.name).read_text()
            values = dict(line.split(":\t", 1) for line in info.splitlines() if ":\t" in line)
            if "prog_id" in values and "verified_insns" in values:
                found[int(values["prog_id"])] = int(values["verified_insns"])
    return found


def test_programs_are_verified_quickly(server_5_6: Server) -> None:
    """Check that the verifier processes few instructions: it uses CPU time on the server's host."""
    before = _verified()
    target = find_one(server_5_6.pid)
    engine = Engine(target, method="bpf")
    snapshot_programs = _verified().keys() - before.keys()
    attachment = Attachment(target)
    try:
        numbers = _verified()
        probe_programs = numbers.keys() - before.keys() - snapshot_programs
        assert snapshot_programs
        assert len(probe_programs) > 30
        assert max(numbers[one] for one in snapshot_programs) < 6_000
        assert max(numbers[one] for one in probe_programs) < 400
    finally:
        attachment.close()
    assert engine.method == "bpf"


@pytest.fixture(scope="module")
def server_5_6() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


def _redo_writes(collector: ProbesCollector) -> int:
    value = by_series(collector.collect()).get(("redo_write_seconds", ()))
    assert isinstance(value, Histogram)
    return value.count


def _check_probes_count(server: Server) -> None:
    """Check that entry and return probes count the writes of a client that commits."""
    collector = ProbesCollector(find_one(server.pid), families=frozenset({"redo"}))
    try:
        before = _redo_writes(collector)
        with Fsync(server, 1) as load:
            until(lambda: load.throughput() > 50)
        assert _redo_writes(collector) - before > 40
    finally:
        collector.close()


def test_two_servers_on_one_file_are_told_apart(server_5_6: Server) -> None:
    with Server("mysql-5.6.24") as other:
        idle = ProbesCollector(find_one(server_5_6.pid), families=frozenset({"redo"}))
        busy = ProbesCollector(find_one(other.pid), families=frozenset({"redo"}))
        try:
            before = _redo_writes(idle), _redo_writes(busy)
            with Fsync(other, 2) as load:
                until(lambda: load.throughput() > 200)
            assert _redo_writes(busy) - before[1] > 100
            assert _redo_writes(idle) - before[0] < 20  # from the idle server's background work
        finally:
            idle.close()
            busy.close()


def test_a_process_that_became_another_server_is_refused(server_5_6: Server) -> None:
    found = replace(find_one(server_5_6.pid), build_id="00" * 20)
    with pytest.raises(NoSuchProcess, match="another executable"):
        Attachment(found, frozenset({"redo"}))


def test_a_replaced_executable_is_probed_by_its_running_file(folder: Path) -> None:
    """Check that the running file's offsets are used; the new file's are in the middle of instructions."""
    server = Server("mysql-5.6.24")
    server.installation = installed_in("mysql-5.6.24", folder / "server")
    with server:
        new = Path(shutil.copy2(fetch("mysql-5.5.9").mysqld, folder / "new"))
        new.rename(server.installation.mysqld)
        _check_probes_count(server)


def test_return_probes_work_on_a_server_with_a_seccomp_filter() -> None:
    """Check that this kernel does not let the filter reject the functions' return (docs/kernels.md)."""
    with Server("mysql-5.6.24", prefix=denying("bpf")) as server:
        assert "Seccomp:\t2" in Path(f"/proc/{server.pid}/status").read_text()
        _check_probes_count(server)


def test_stacks_below_return_probes_are_complete(server_5_6: Server) -> None:
    """Check stacks with a return probe, which replaces a return address with one in the [uprobes] page."""
    target = find_one(server_5_6.pid)
    with Sleep(server_5_6, 20):
        engine = Engine(target)
        collector = ProbesCollector(target, families=frozenset({"statement"}))
        collector.start()
        try:
            with Sleep(server_5_6, 20):  # these statements must start after the probe is attached
                until_asleep(server_5_6.pid)
                snapshot = engine.take_snapshot()
        finally:
            collector.close()
    sleeping = [
        t for t in snapshot.threads if any(f.function and "Item_func_sleep" in f.function for f in t.frames)
    ]
    assert len(sleeping) == 40
    assert {thread.trust for thread in sleeping} == {Trust.EXACT}
    names = {tuple(frame.function for frame in thread.frames) for thread in sleeping}
    assert len(names) == 1, "the stacks of probed and unprobed calls differ"


def test_closing_a_collector_leaves_nothing_in_the_kernel(server_5_6: Server) -> None:
    before = _verified().keys()
    collector = ProbesCollector(find_one(server_5_6.pid))
    collector.start()
    own = _verified().keys() - before  # other tests' processes load and free programs meanwhile
    assert len(own) > 30
    assert own <= _loaded_programs()
    collector.close()
    assert breakpoints(server_5_6.pid) == set()
    until(lambda: not own & _loaded_programs())  # the kernel frees the programs a little later
    assert orphans() == set()


def _loaded_programs() -> set[int]:
    """Return the ids of all programs in the kernel, which frees them when their last descriptor is closed."""
    shown = subprocess.run(["bpftool", "--json", "prog", "show"], capture_output=True, text=True, check=True)
    return {program["id"] for program in json.loads(shown.stdout)}


def test_a_collector_survives_the_end_of_its_server() -> None:
    with Server("mysql-5.6.24") as server:
        target = find_one(server.pid)
        collector = ProbesCollector(target, families=frozenset({"redo"}))
        collector.start()
    collector.collect()
    collector.close()
