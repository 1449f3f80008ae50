"""Run the fuzz targets: `python -m fuzz`; for longer runs `make fuzz SECONDS=3600`."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fuzz import seeds
from fuzz.targets import PYTHON, RUST
from innoscope.common.cache import cache_folder

if TYPE_CHECKING:
    from collections.abc import Collection

_HERE: Final = Path(__file__).resolve().parent
_CRATE: Final = _HERE / "rust"
_TRIPLE: Final = "x86_64-unknown-linux-gnu"
#: The flags that cargo-fuzz sets: coverage of edges and comparisons, and AddressSanitizer.
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
#: libFuzzer's limit for the process's memory in MiB. The harness itself limits what an input allocates.
_RSS: Final = 2048
#: libFuzzer's wall-clock limit for one input, in case it hangs; the harness limits the CPU time.
_ALARM_S: Final = 20
#: Number of seed directories to keep: one for this version, and one for another version that is in use.
_SEED_FOLDERS: Final = 2
#: Matches the lines of libFuzzer's output that belong in a report.
_REPORTED: Final = re.compile(r"panicked|of CPU|bytes for|ERROR|Error|Exception|SUMMARY|Test unit|agent/")
_STATISTIC: Final = re.compile(r"stat::(\w+):\s+(\d+)")


@dataclass(frozen=True)
class Result:
    """The result of one target. If it failed, ``report`` contains the errors.

    ``cpu_s`` does not include the start-up of Python.
    """

    target: str
    executions: int
    seconds: int
    cpu_s: float
    corpus: int
    report: str | None


def default_folder() -> Path:
    """Return the directory for seeds, corpora, builds and failing inputs. It is outside the source tree."""
    return cache_folder() / "fuzz"


def prepare(folder: Path, targets: Collection[str]) -> None:
    """Build the targets in Rust if any is named, and make the seeds of this version unless they exist.

    The target ``history`` is built only if it is among ``targets``, because Parquet takes minutes to compile.

    Other processes, including those of other versions, may use the directory at the same time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not RUST.keys().isdisjoint(targets):
            _compile(folder, ["--features", "history"] if "history" in targets else [])
        current = seeds_folder(folder)
        if not current.exists():
            partial = folder / "partial-seeds"
            shutil.rmtree(partial, ignore_errors=True)
            seeds.make(partial)
            partial.rename(current)
        os.utime(current)
        remove_outdated_seeds(folder)


def _compile(folder: Path, features: list[str]) -> None:
    subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--locked", "--target", _TRIPLE, "--manifest-path",
         _CRATE / "Cargo.toml", "--target-dir", folder / "target", *features],
        env=os.environ | {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": _RUSTFLAGS},
        check=True,
    )  # fmt: skip


def remove_outdated_seeds(folder: Path) -> None:
    """Remove the seeds of all versions except the most recently used ones."""
    by_age = sorted(folder.glob("seeds-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for outdated in by_age[_SEED_FOLDERS:]:
        shutil.rmtree(outdated)


def seeds_folder(folder: Path) -> Path:
    """Return the directory for the seeds of this version, named after a hash of the sources in tests/fuzz."""
    sources = b"".join(path.read_bytes() for path in sorted(_HERE.glob("*.py")))
    return folder / f"seeds-{hashlib.sha256(sources).hexdigest()[:16]}"


def run(folder: Path, target: str, seconds: int, corpora: Path | None = None) -> Result:
    """Fuzz one target for ``seconds``. Write failing inputs to ``folder/failed/TARGET``.

    Its corpus is in ``corpora``, which is ``folder/corpus`` by default.
    """
    corpus, failed = (corpora or folder / "corpus") / target, folder / "failed" / target
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
        f"-rss_limit_mb={_RSS}", f"-artifact_prefix={failed}/",
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": str(_HERE.parent),
        "XDG_CACHE_HOME": str(folder / "nothing-cached"),
        # With fixed thresholds, glibc returns freed memory to the kernel, so that the growth caused by each
        # input can be measured.
        "MALLOC_MMAP_THRESHOLD_": str(128 << 10),
        "MALLOC_TRIM_THRESHOLD_": str(128 << 10),
    }
    before = _cpu_of_children_s()
    done = subprocess.run(
        ["nice", "-n", "10", *command, *limits, corpus, seeds_folder(folder) / target],
        capture_output=True, text=True, errors="replace", check=False, env=environment,
    )  # fmt: skip
    numbers = {name: int(value) for name, value in _STATISTIC.findall(done.stderr)}
    executions = numbers.get("number_of_executed_units", 0)
    report = None
    if done.returncode != 0 or executions == 0:
        report = _summary(done.stderr) or f"{executions} executions, exit code {done.returncode}"
    cpu_s = _cpu_of_children_s() - before - numbers.get("start_up_cpu_ms", 0) / 1000
    return Result(target, executions, seconds, cpu_s, len(list(corpus.iterdir())), report)


def _cpu_of_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _summary(output: str) -> str:
    """Return the lines of the output that show the error, frames in our own code and the input file."""
    lines = [line[:300] for line in output.splitlines() if _REPORTED.search(line)]
    return "\n".join(lines[-40:])


def main() -> int:
    """Fuzz the named targets, or all of them. The exit code is 1 if a target failed or ran no input."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=main.__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *RUST, *PYTHON], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="seeds, corpora, failures")
    parser.add_argument("--corpora", type=Path, help="another directory for the corpora")
    options = parser.parse_args()
    targets = options.targets or [*RUST, *PYTHON]
    prepare(options.folder, targets)
    failures = 0
    for target in targets:
        result = run(options.folder, target, options.seconds, options.corpora)
        state = "failed" if result.report else "ok"
        print(f"{target:10} {state:6} {result.executions:>12,} executions in {options.seconds} s "
              f"({result.cpu_s:.1f} s of CPU), corpus {result.corpus:,}", flush=True)  # fmt: skip
        if result.report:
            failures += 1
            print(f"{result.report}\ninputs: {options.folder / 'failed' / target}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
