"""Run a machine for a test: Debian's systemd as process 1 in namespaces, on a temporary disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper
from servers.run import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BOOT = Path(__file__).with_name("boot.sh")
_SYSTEMD = ("/lib/systemd/systemd", "--unit=multi-user.target", "--show-status=no")
_NOTHING = ("/bin/sleep", "infinity")
_BOOT_S = 180
_GONE_S = 180
_ASK = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=90).read().decode())"


class Machine:
    """Context manager: a Debian system in its own namespaces.

    ``shown`` maps host directories to the paths at which the machine mounts them read-only.
    If ``booted`` is false, no systemd runs in the machine, as in a container build.
    """

    def __init__(self, base: Path, shown: Mapping[Path, str] | None = None, *, booted: bool = True) -> None:
        self._base = base
        self._shown = [str(word) for pair in (shown or {}).items() for word in pair]
        self._booted = booted
        self._keeper = Keeper()
        self._place = Path(tempfile.mkdtemp(prefix="innoscope-machine-", dir="/tmp"))
        self._keeper.remove(self._place)
        self._groups = [group / self._place.name for group in _hierarchies()]
        self.pid = 0

    def __enter__(self) -> Machine:
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--fork", "--kill-child"]
        first = ("--", *(_SYSTEMD if self._booted else _NOTHING))
        for group in self._groups:
            group.mkdir()
        self._log = (self._place.with_suffix(".log")).open("w+")
        self._process = subprocess.Popen(
            ["sh", "-c", _ENTER, "sh", *map(str, self._groups), "--",
             "unshare", *spaces, "sh", str(_BOOT), str(self._base), str(self._place), *self._shown, *first],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
        self._keeper.watch(self._process.pid)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.end(self._process)
        self._keeper.close()  # removes the machine's disk
        self._log.close()
        Path(self._log.name).unlink()
        for group in self._groups:
            _remove_group(group)

    @property
    def root(self) -> Path:
        """Return the machine's root directory, as a path on the host."""
        return Path(f"/proc/{self.pid}/root")

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in the machine; return its standard output and error."""
        done = subprocess.run(
            [*self._inside(), *command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def show(self, unit: str, name: str) -> str:
        """Return the value of a property of a systemd unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str) -> str:
        """Return the lines of the machine's journal about a systemd unit."""
        return self.run("journalctl", "--no-pager", f"--unit={unit}", check=False)

    def get(self, path: str) -> str:
        """Return a page that the machine's agent serves."""
        command = ["nsenter", f"--target={self.pid}", "--net", sys.executable, "-c", _ASK]
        url = f"http://127.0.0.1:9977{path}"
        return subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=100).stdout

    def files(self) -> set[str]:
        """Return all paths on the machine's disk, with type, mode and owner."""
        listed = self.run("find", "/", "-xdev", "-printf", "%y %m %u:%g %p\\n")
        return set(listed.splitlines())

    def _inside(self) -> Sequence[str]:
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
        return ["nsenter", f"--target={self.pid}", *spaces]

    def _wait(self) -> None:
        """Wait until the machine has booted."""
        deadline = time.monotonic() + _BOOT_S
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the machine does not boot: {Path(self._log.name).read_text()}")
            time.sleep(0.02)

    def _is_up(self) -> bool:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            return False
        self.pid = int(children[0])
        name = Path(f"/proc/{self.pid}/comm").read_text()
        if not self._booted:
            return name == "sleep\n"
        if name != "systemd\n":  # before boot.sh ends, its root directory is the host's
            return False
        if not (self.root / "run/systemd/private").is_socket():
            return False
        return self.run("systemctl", "is-system-running", "--wait", check=False).strip() in (
            "running",
            "degraded",
        )


#: A shell script that enters the cgroups given before ``--`` and executes the command after it.
_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"'


def _hierarchies() -> list[Path]:
    """Return the roots of the host's cgroups: one in version 2, or one per controller in version 1."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]


def _remove_group(group: Path) -> None:
    """Remove a cgroup and its subgroups, once the kernel has detached the probes of its processes."""
    folders = [folder for folder, _, _ in os.walk(group, topdown=False)]
    deadline = time.monotonic() + _GONE_S
    for folder in folders:
        while True:
            try:
                Path(folder).rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
