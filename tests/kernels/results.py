"""Pass a run's result out of the virtual machine on a disk, and store it in the tree."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")

#: Number of digits of the result's length, which is stored at the start of the disk.
_DIGITS = 16

Result = dict[str, Any]


def write_to(disk: Path, result: Result) -> None:
    """Write the result to the disk, replacing an earlier one."""
    text = json.dumps(result, ensure_ascii=False).encode()
    with disk.open("r+b") as file:
        file.write(f"{len(text):0{_DIGITS}d}".encode() + text)
        file.flush()
        os.fsync(file.fileno())


def read_from(disk: Path) -> Result | None:
    """Return the result on the disk, or None if there is none."""
    with disk.open("rb") as file:
        length = file.read(_DIGITS)
        if not length.isdigit():
            return None
        found: Result = json.loads(file.read(int(length)))
        return found


def tree() -> dict[str, str]:
    """Return today's date and the commit of the tree, which are stored with a result."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": commit}


def path(kernel: str, variant: str) -> Path:
    """Return the path of the file in which a run's result is stored."""
    return FOLDER / f"{kernel.rstrip('.')}-{variant}.json"


def save(kernel: str, variant: str, result: Result) -> None:
    """Store the result of a run in the tree."""
    FOLDER.mkdir(exist_ok=True)
    path(kernel, variant).write_text(json.dumps(result, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def load(kernel: str, variant: str) -> Result | None:
    """Return the stored result of a run, or None if there is none."""
    file = path(kernel, variant)
    if not file.exists():
        return None
    found: Result = json.loads(file.read_text())
    return found
