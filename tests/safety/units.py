"""Parse the systemd units that we ship, and run commands with their restrictions but without systemd.

Users, groups, capabilities, no_new_privs, the system call filter, address families, MemoryDenyWriteExecute,
and read-only and hidden paths are applied. The other settings only restrict features that the daemons do not
use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import innoscope

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(innoscope.__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "systemd"
_PYTHON = str(Path(sys.executable).resolve())
_SEEN_AT = Path("/mnt")
_MAIN = _SEEN_AT / "tests/safety/confine_main.py"
_PREFIX = "CAP_"
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Unit:
    """The settings of a unit file, each with all its values in order."""

    path: Path
    settings: dict[str, list[str]]

    @classmethod
    def named(cls, name: str) -> Unit:
        """Read the unit of ``sensor`` or ``agent``."""
        path = FOLDER / f"innoscope-{name}.service"
        settings: dict[str, list[str]] = {}
        for line in path.read_text().splitlines():
            if line and line[0] not in "#;[":
                key, value = line.split("=", 1)
                settings.setdefault(key, []).append(value)
        return cls(path, settings)

    def __getitem__(self, key: str) -> str:
        (value,) = self.settings[key]
        return value

    @property
    def command(self) -> list[str]:
        """Return the arguments with which the unit starts innoscope."""
        program, *arguments = self["ExecStart"].split()
        assert program == "/usr/bin/innoscope"
        return arguments

    @property
    def memory_max(self) -> int:
        """Return the memory limit in bytes."""
        text = self["MemoryMax"]
        return int(text[:-1]) * _SUFFIXES[text[-1]]

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Return the ambient capabilities, which must equal the bounding set."""
        assert self["CapabilityBoundingSet"] == self["AmbientCapabilities"]
        return tuple(self["AmbientCapabilities"].split())

    @property
    def allowed(self) -> set[str]:
        """Return the system calls that the filter allows. Like systemd, resolve groups and add @default."""
        first, *_ = self.settings["SystemCallFilter"]
        assert first[0] != "~", "not an allow list"
        names = set(_group("@default"))
        for value in self.settings["SystemCallFilter"]:
            listed: set[str] = set()
            for word in value.removeprefix("~").split():
                listed |= _group(word) if word[0] == "@" else {word}
            names = names - listed if value[0] == "~" else names | listed
        return names

    def filter(self) -> dict[str, Any]:
        """Return the settings that ``confine_main.py`` applies."""
        return {
            "allowed": sorted(self.allowed),
            "error": self["SystemCallErrorNumber"],
            "families": self["RestrictAddressFamilies"].split(),
            "no_new_code": self["MemoryDenyWriteExecute"] == "yes",
        }


@cache
def _group(name: str) -> frozenset[str]:
    command = ["systemd-analyze", "--no-pager", "syscall-filter", name]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    members = [line.strip() for line in text.splitlines()[1:] if line.strip() and line.strip()[0] != "#"]
    nested = (_group(member) for member in members if member[0] == "@")
    return frozenset(member for member in members if member[0] != "@").union(*nested)


class Accounts:
    """Copies of this machine's user and group files, plus the users and groups that the units need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "etc").mkdir()
        for name in ("passwd", "group"):
            shutil.copy(f"/etc/{name}", folder / "etc" / name)
        text = (FOLDER / "innoscope.sysusers").read_bytes()
        subprocess.run(["systemd-sysusers", f"--root={folder}", "-"], input=text, check=True)

    def user(self, name: str) -> tuple[int, int]:
        """Return the user id and group id of a user."""
        entry = self._entry("passwd", name)
        return int(entry[2]), int(entry[3])

    def group(self, name: str) -> int:
        """Return the id of a group."""
        return int(self._entry("group", name)[2])

    def _entry(self, file: str, name: str) -> list[str]:
        lines = (self.folder / "etc" / file).read_text().splitlines()
        return next(line.split(":") for line in lines if line.startswith(f"{name}:"))


@contextmanager
def temporary_accounts() -> Iterator[Accounts]:
    """Provide the accounts in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="innoscope-users-") as folder:
        yield Accounts(Path(folder))


@contextmanager
def sensor_folder(accounts: Accounts) -> Iterator[Path]:
    """Create the directory that systemd would create for the sensor, readable by all users."""
    with tempfile.TemporaryDirectory(prefix="innoscope-unit-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        os.chown(path, *accounts.user("innoscope-sensor"))
        yield path


def confined(
    unit: Unit, accounts: Accounts, *, writable: Path,
    less: tuple[str, ...] = (), more: tuple[str, ...] = (), filtered: bool = True,
) -> list[str]:  # fmt: skip
    """Return a command prefix that applies the restrictions of the unit.

    The command may write only below ``writable``. It has the unit's capabilities minus ``less`` plus
    ``more``. Our packages are mounted at /mnt, because the unit's user may have no access to the source tree.
    """
    held = [name.removeprefix(_PREFIX).lower() for name in (*unit.capabilities, *more) if name not in less]
    named = ",".join(["-all", *(f"+{name}" for name in held)])
    uid, gid = accounts.user(unit["User"])
    groups = [accounts.group(name) for name in unit.settings.get("SupplementaryGroups", [])]
    run = [
        "env", f"PYTHONPATH={_SEEN_AT}/agent:{_SEEN_AT}/site", f"XDG_CACHE_HOME={writable}",
        f"PATH={_SEEN_AT}/bin:{os.environ['PATH']}",
        "setpriv", f"--reuid={uid}", f"--regid={gid}",
        f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups",
        f"--bounding-set={named}", f"--inh-caps={named}", f"--ambient-caps={named}", "--no-new-privs",
    ]  # fmt: skip
    if filtered:
        run += [_PYTHON, "-B", str(_MAIN), json.dumps(unit.filter())]
    script = " && ".join([*_mounts(unit, accounts, writable), 'exec "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh", *run]


def _mounts(unit: Unit, accounts: Accounts, writable: Path) -> list[str]:
    ours = ("agent", "dashboards", "probes", "tests")
    shown = {name: ROOT / name for name in ours if (ROOT / name).is_dir()} | {
        "site": Path(click.__file__).parents[1], "bin": Path(sys.executable).parent,
    }  # fmt: skip
    steps = [f"mount -t tmpfs -o mode=755 tmpfs {_SEEN_AT}"]
    for name, real in shown.items():
        steps += [f"mkdir {_SEEN_AT}/{name}", f"mount --bind '{real}' {_SEEN_AT}/{name}"]
    steps += [f"mount --bind {accounts.folder}/etc/{name} /etc/{name}" for name in ("passwd", "group")]
    if unit["ProtectHome"] == "yes":
        steps += [f"mount -t tmpfs -o mode=0,ro tmpfs {place}" for place in ("/root", "/home")]
    if unit["ProtectKernelTunables"] == "yes":
        steps += [f"install -m 0 /dev/null {_SEEN_AT}/none", f"mount --bind {_SEEN_AT}/none /proc/kallsyms"]
        steps += ["mount -o remount,bind,ro /sys"]
    assert unit["ProtectSystem"] == "strict"
    return [*steps, f"mount --bind {writable} {writable}", "cd /", "mount -o remount,bind,ro /"]


def command_line(prefix: list[str]) -> list[str]:
    """Extend a prefix for commands that begin with innoscope's path, so that our Python runs innoscope."""
    return [*prefix, "sh", "-c", f'shift; exec {_PYTHON} -B -m innoscope.cli.main "$@"', "sh"]


def python(prefix: list[str], name: str, *arguments: object) -> list[str]:
    """Return the command that runs the script ``name`` in this directory with ``prefix``."""
    return [*prefix, _PYTHON, "-B", str(_MAIN.with_name(name)), *map(str, arguments)]
