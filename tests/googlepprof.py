"""Build Google's pprof from its Go module, pinned in tests/google_pprof/go.sum, and parse its output."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import gotools
from servers import cache

_HOME = Path(__file__).parent / "google_pprof"
#: Options that prevent network access, and keep pprof from omitting nodes or changing names.
_UNCHANGED = ("-symbolize=none", "-nodecount=1000000", "-nodefraction=0", "-edgefraction=0")


def binary() -> Path:
    """Return the path of pprof in the cache; build pprof if this version is missing."""

    def build(folder: Path) -> None:
        gotools.go("build", "-o", str(folder / "pprof"), "github.com/google/pprof", folder=_HOME)

    return gotools.cached(f"google-pprof-{cache.sha256(_HOME / 'go.sum')[:12]}", build) / "pprof"


def _run(file: Path, *options: str) -> str:
    environment = os.environ | {"PPROF_TMPDIR": str(file.parent), "PPROF_BINARY_PATH": str(file.parent)}
    done = subprocess.run(
        [str(binary()), *options, str(file)],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def top(file: Path, unit: str = "count") -> dict[str, tuple[int, int]]:
    """Return the (flat, cumulative) values of each function from the output of ``-top``."""
    text = _run(file, "-top", *_UNCHANGED, f"-unit={unit}")
    rows = re.findall(r"^\s*([\d.]+)\w*\s+\S+%\s+\S+%\s+([\d.]+)\w*\s+\S+%\s+(.+?)$", text, re.MULTILINE)
    return {name.removesuffix(" (inline)"): (int(flat), int(total)) for flat, total, name in rows}


def tags(file: Path, unit: str = "count") -> dict[str, Counter[str]]:
    """Return the sums by label and label value from the output of ``-tags``."""
    found: dict[str, Counter[str]] = {}
    for line in _run(file, "-tags", *_UNCHANGED, f"-unit={unit}").splitlines():
        if heading := re.fullmatch(r"\s*(\w+): Total .*", line):
            found[heading[1]] = Counter()
        elif row := re.fullmatch(r"\s*([\d.]+)\w* \([^)]*%\): (.+)", line):
            found[next(reversed(found))][row[2]] += int(float(row[1]))
    return found


def raw(file: Path) -> tuple[str, list[int]]:
    """Return the sample type and the value of each sample from the output of ``-raw``."""
    text = _run(file, "-raw", "-symbolize=none")
    samples = text.partition("Samples:\n")[2].partition("Locations\n")[0]
    kind, _, rest = samples.partition("\n")
    return kind, [int(number) for number in re.findall(r"^\s+(\d+): ", rest, re.MULTILINE)]
