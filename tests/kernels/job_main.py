"""``python -m kernels.job_main VARIANT DISK``: the job in the virtual machine, which writes results to DISK.

The results are written again after each step, so that they are not lost if a later step takes too long.
"""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import seccomp

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.engine import Engine
from innoscope.sampling.model import Trust
from innoscope.target.discover import find_one
from kernels import results
from kernels.kernels import DEFAULT, MACHINES
from live.observe import THREAD_EACH, Observation, affected, own_threads
from safety.agenting import Running
from safety.command import INNOSCOPE
from safety.sensing import Sensing
from safety.well import assert_well, statuses
from servers import Server
from snapshot_methods import STOPPING_NOTHING
from workloads import Idle, RowLock, Sleep, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads import Workload

#: The default variant uses all of these servers, and the other variants use only the first one.
_SERVERS = MACHINES[os.uname().machine].servers
_CONNECTIONS = 10
_SNAPSHOTS = 4
_KILLS = 5
_SEED = 20261125
#: Maximum seconds for any one operation. The emulated CPU is 10 to 30 times slower than the host's.
_PATIENCE_S = 900
#: Maximum characters of a command's output to keep.
_OUTPUT = 1_500
_LOADS: tuple[type[Workload], ...] = (Idle, Sleep, RowLock)


class Job:
    """The steps of a run, and their results."""

    def __init__(self, variant: str, disk: Path) -> None:
        self._disk = disk
        self._variant = variant
        self.result: results.Result = {"kernel": os.uname().release, "variant": variant, "servers": {}}

    def run(self) -> None:
        """Run all steps on all servers of the variant, and write the results to the disk."""
        for name in _SERVERS if self._variant == DEFAULT else _SERVERS[:1]:
            self._step(self.result["servers"].setdefault(name, {}), "server", partial(self._on, name))
        self.result["kernel log"] = kernel_log()
        self.result["complete"] = True
        results.write_to(self._disk, self.result)

    def _on(self, name: str) -> str:
        found = self.result["servers"][name]
        with closing(Server(name, options=THREAD_EACH)) as server:
            server.start(timeout=_PATIENCE_S)
            own = own_threads(server)
            self._step(found, "doctor", partial(doctor, server))
            with UpdateStorm(server, 4, ready_timeout=_PATIENCE_S):
                self._step(found, "profile", partial(profile, server))
                self._step(found, "profile --off-cpu", partial(profile, server, "--off-cpu"))
                self._step(found, "probes", partial(probes, server))
            self._step(found, "toggle", partial(toggle, server))
            with ExitStack() as stack:
                loads = [
                    stack.enter_context(kind(server, _CONNECTIONS, ready_timeout=_PATIENCE_S))
                    for kind in _LOADS
                ]
                threads = {load.name: affected(server, own, load) for load in loads}
                for method in ("auto", *STOPPING_NOTHING):
                    self._step(found, f"stacks {method}", partial(stacks, server, method, threads, loads))
                self._step(found, "diagnose", partial(diagnose, server))
                self._step(found, "agent", partial(agent, server))
                self._step(found, "kills", partial(kills, server))
            return server.version

    def _step(self, into: results.Result, name: str, act: Callable[[], Any]) -> None:
        print(f"{time.monotonic():.0f} s: {name}", flush=True)
        began = time.monotonic()
        try:
            into[name] = act()
        except Exception as error:  # a failure is a result too; run the other steps
            traceback.print_exc()
            into[name] = {"failed": f"{type(error).__name__}: {error}"[-_OUTPUT:]}
        into.setdefault("seconds", {})[name] = round(time.monotonic() - began)
        results.write_to(self._disk, self.result)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INNOSCOPE, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=_PATIENCE_S, check=False,
    )  # fmt: skip


def shown(done: subprocess.CompletedProcess[str]) -> results.Result:
    """Return the exit code of a command, and its error output if it failed."""
    return {"exit": done.returncode, "error": done.stderr[:_OUTPUT] if done.returncode else ""}


def doctor(server: Server) -> results.Result:
    done = command("doctor", "--pid", server.pid, "-u", "root", "--json")
    report = json.loads(done.stdout)
    return {
        "exit": done.returncode,
        "verdict": report["verdict"],
        "host": {one["name"]: [one["status"], one["detail"]] for one in report["host"]},
    }


def stacks(
    server: Server, method: str, threads: dict[str, frozenset[int]], loads: list[Workload]
) -> results.Result:
    """Take snapshots with one method, and compare the wait classes with the known loads."""
    seen = {name: Observation() for name in threads}
    try:
        engine = Engine(find_one(server.pid), method=method)
        times = []
        for _ in range(_SNAPSHOTS):
            snapshot = engine.take_snapshot()
            times.append(round(snapshot.duration_ms))
            for name, tids in threads.items():
                seen[name].add(snapshot, tids)
    except InnoscopeError as error:
        return {"refused": str(error)}
    every = next(iter(seen.values()))
    return {
        "method": engine.method,
        "ms": times,
        "at rest": {str(trust): count for trust, count in every.at_rest.items()},
        "running": {str(trust): count for trust, count in every.running.items()},
        "complete": sum(every.at_rest[trust] for trust in (Trust.EXACT, Trust.INFERRED)),
        "all": every.at_rest.total(),
        "examples": every.shown(set(every.at_rest) - {Trust.EXACT, Trust.INFERRED})[:_OUTPUT],
        "right": sum(seen[load.name].waits[load.expected] for load in loads),
        "affected": sum(one.waits.total() for one in seen.values()),
        "waits": {name: dict(one.waits) for name, one in seen.items()},
    }


def diagnose(server: Server) -> results.Result:
    """Diagnose the row lock convoy."""
    done = command("diagnose", "--pid", server.pid, "-u", "root", "--seconds", "10", "--json")
    if not done.stdout:
        return shown(done)
    report = json.loads(done.stdout)
    return {
        "exit": done.returncode,
        "findings": [one["name"] for one in report["findings"]],
        "snapshots": report["looks"],
        "checked": report["checked"],
        "rules": report["rules"],
        "cannot tell": [[one["source"], one["words"]] for one in report["cannot_tell"]],
    }


def agent(server: Server) -> results.Result:
    """Run an agent with a sensor, and scrape it until it returns thread samples or time runs out."""
    deadline = time.monotonic() + _PATIENCE_S / 3
    with (
        Sensing(only=[server], ready_s=_PATIENCE_S) as sensor,
        Running(server, sensor=sensor.path, ready_s=_PATIENCE_S) as running,
    ):
        while True:
            lines = running.get("/metrics")[1].decode().splitlines()
            samples = [line for line in lines if line.startswith("innoscope_thread_samples_total")]
            if samples or time.monotonic() > deadline:
                break
            time.sleep(1)
        assert_well(server)
        failures = [line for line in lines if line.startswith("innoscope_collector_failure_info")]
        return {"thread samples": samples, "failures": failures, "sensor": "" if samples else sensor.log}


def kills(server: Server) -> results.Result:
    """Kill `innoscope stacks` at random times. Each time, the server must keep running and not be traced."""
    arguments = ["stacks", "--pid", str(server.pid), "--count", "4", "--interval", "0.01"]
    began = time.monotonic()
    done = command(*arguments)
    longest = time.monotonic() - began
    draw, killed = random.Random(_SEED), 0  # noqa: S311
    for _ in range(_KILLS):
        process = subprocess.Popen(
            [INNOSCOPE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(draw.uniform(0, longest))
        except subprocess.TimeoutExpired:
            killed += 1
        process.kill()
        process.wait()
        assert_well(server)
    return {"exit": done.returncode, "kills": killed, "threads": len(list(statuses(server.pid)))}


def profile(server: Server, *options: str) -> results.Result:
    done = command("profile", "--pid", server.pid, "--seconds", "5", "--json", *options)
    if done.returncode != 0:
        return shown(done)
    report = json.loads(done.stdout.splitlines()[0])
    return {"exit": 0} | {key: report[key] for key in ("seconds", "records", "lost", "tally", "notes")}


def probes(server: Server) -> results.Result:
    """Attach the default probes for ten seconds; count those that were attached and those with hits."""
    done = command("probes", "measure", "--pid", server.pid, "--seconds", "10", "--json")
    if done.returncode != 0:
        return shown(done)
    reports = json.loads(done.stdout)["probes"]
    return {
        "exit": 0,
        "states": Counter(one["state"] for one in reports),
        "attached": sum(one["state"] in ("attached", "sampled") for one in reports),
        "counting": sum(one["hits"] > 0 for one in reports),
        "reasons": Counter(one["reason"] for one in reports if one["reason"]),
    }


def toggle(server: Server) -> results.Result:
    """Change a setting and undo the change."""
    where = ("--pid", server.pid, "-u", "root")
    change = command("toggle", "set", "io_capacity", "321", *where, "--yes")
    value = _value(server, "innodb_io_capacity")
    undo = command("toggle", "undo", *where)
    return {
        "set": shown(change),
        "value": value,
        "undo": shown(undo),
        "after": _value(server, "innodb_io_capacity"),
    }


def _value(server: Server, name: str) -> str:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{name}")
        return str(cursor.fetchall()[0][0])


def kernel_log() -> str:
    """Return the last part of the warnings and errors in the kernel's log."""
    levels = "emerg,alert,crit,err,warn"
    done = subprocess.run(["dmesg", "--level", levels], capture_output=True, text=True, check=False)
    return done.stdout[-4 * _OUTPUT :]


def deny_bpf() -> None:
    """Deny BPF and perf events to this process and its children."""
    rules = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    for name in ("bpf", "perf_event_open"):
        rules.add_rule(seccomp.ERRNO(errno.EPERM), name)
    rules.load()


def main() -> None:
    variant, disk = sys.argv[1:]
    if variant == "seccomp":
        deny_bpf()
    Job(variant, Path(disk)).run()


if __name__ == "__main__":
    main()
