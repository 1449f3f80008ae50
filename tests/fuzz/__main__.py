"""Fuzz: `python -m fuzz`, all targets for some seconds each; `make fuzz SECONDS=3600` for long."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz import seeds
from fuzz.targets import PYTHON, RUST
from innoscope.common.cache import cache_folder

_HERE: Final = Path(__file__).resolve().parent
_CRATE: Final = _HERE / "rust"
_TRIPLE: Final = "x86_64-unknown-linux-gnu"
#: As cargo-fuzz sets them: coverage of edges and comparisons, and AddressSanitizer.
_RUSTFLAGS: Final = " ".join((
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "--cfg fuzzing",
    "-Zsanitizer=address",
))  # fmt: skip
#: In MiB. Python: its own memory and the 64 MB that an input may take. Rust: room for AddressSanitizer; the
#: harness counts what an input takes.
_PYTHON_RSS: Final = 160 + 64
_RUST_RSS: Final = 2048
#: libFuzzer's alarm by the wall clock, beyond the harness's own limit of CPU time: for what never ends.
_ALARM_S: Final = 20
_TELLING: Final = re.compile(r"panicked|of CPU|bytes for|ERROR|Error|Exception|SUMMARY|Test unit|agent/")
_STATISTIC: Final = re.compile(r"stat::(\w+):\s+(\d+)")


@dataclass(frozen=True)
class Result:
    """What came of one target. ``report`` is the end of its output where it failed."""

    target: str
    executions: int
    seconds: int
    corpus: int
    report: str | None


def default_folder() -> Path:
    """Return the folder outside the tree that has seeds, corpora, builds and failures."""
    return cache_folder() / "fuzz"


def prepare(folder: Path) -> None:
    """Build the targets in Rust, and make the seeds unless they are there."""
    subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--locked", "--target", _TRIPLE, "--manifest-path",
         _CRATE / "Cargo.toml", "--target-dir", folder / "target"],
        env=os.environ | {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": _RUSTFLAGS},
        check=True,
    )  # fmt: skip
    made = seeds_folder(folder)
    if not made.exists():
        for outdated in folder.glob("seeds*"):
            shutil.rmtree(outdated)
        partial = made.with_suffix(".partial")
        seeds.make(partial)
        partial.rename(made)


def seeds_folder(folder: Path) -> Path:
    """Return where the seeds are that this version of the targets makes."""
    sources = b"".join(path.read_bytes() for path in sorted(_HERE.glob("*.py")))
    return folder / f"seeds-{hashlib.sha256(sources).hexdigest()[:16]}"


def run(folder: Path, target: str, seconds: int) -> Result:
    """Fuzz one target for so many seconds. Inputs that failed are kept in ``folder/failed/TARGET``."""
    corpus, failed = folder / "corpus" / target, folder / "failed" / target
    for one in (corpus, failed):
        one.mkdir(parents=True, exist_ok=True)
    in_python = target in PYTHON
    command: list[str | Path] = (
        [sys.executable, "-m", "fuzz.one", target]
        if in_python
        else [folder / "target" / _TRIPLE / "release" / target]
    )
    most = PYTHON[target].max_len if in_python else RUST[target]
    limits = [
        f"-max_total_time={seconds}", f"-timeout={_ALARM_S}", f"-max_len={most}", "-print_final_stats=1",
        f"-rss_limit_mb={_PYTHON_RSS if in_python else _RUST_RSS}", f"-artifact_prefix={failed}/",
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": str(_HERE.parent),
        "XDG_CACHE_HOME": str(folder / "nothing-cached"),
    }
    done = subprocess.run(
        ["nice", "-n", "10", *command, *limits, corpus, seeds_folder(folder) / target],
        capture_output=True, text=True, errors="replace", check=False, env=environment,
    )  # fmt: skip
    numbers = {name: int(value) for name, value in _STATISTIC.findall(done.stderr)}
    report = None if done.returncode == 0 else _end_of(done.stderr)
    return Result(
        target, numbers.get("number_of_executed_units", 0), seconds, len(list(corpus.iterdir())), report
    )


def _end_of(output: str) -> str:
    """Keep the error, the frames in our own code, and which input it was."""
    lines = [line[:300] for line in output.splitlines() if _TELLING.search(line)]
    return "\n".join(lines[-40:])


def main() -> int:
    """Fuzz the targets that are named, else all. Exit code 1 when an input failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=main.__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *RUST, *PYTHON], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="seeds, corpora, failures")
    given = parser.parse_args()
    prepare(given.folder)
    failures = 0
    for target in given.targets or [*RUST, *PYTHON]:
        result = run(given.folder, target, given.seconds)
        state = "failed" if result.report else "ok"
        print(f"{target:10} {state:6} {result.executions:>12,} executions in {given.seconds} s, "
              f"corpus {result.corpus:,}", flush=True)  # fmt: skip
        if result.report:
            failures += 1
            print(f"{result.report}\ninputs: {given.folder / 'failed' / target}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
