"""The examples in docs/extending.md work when they are applied to a copy of the tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from innoscope.diagnose import rules
from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.verdict import judge
from innoscope.probes import catalog as probe_catalog
from innoscope.sampling import wait_catalog
from innoscope.sampling.classify import WaitClassifier
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary
from innoscope.toggles import catalog as toggle_catalog
from unit.snapshots import frames
from unit.toggling import World

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
_EXAMPLE = re.compile(r"<!-- extending: (\w+) -->\n```diff\n(.*?)```\n(?:\n```sh\n(.*?)```)?", re.S)
#: Each example's diff, and the commands to run after it, by name.
EXAMPLES = {name: (diff, commands) for name, diff, commands in _EXAMPLE.findall(PAGE)}
#: Maximum number of files that an example may edit by hand, not counting tests and generated pages.
MOST_FILES = 3
#: For each example, patterns that select the unit tests that must pass after the example is applied.
CHECKS = {
    "version": ("probe_catalog", "probe_source", "toggle_catalog*"),
    "probe": ("probe_catalog", "probe_source", "registry", "dashboards"),
    "wait": ("classify*", "waits_collector", "dashboards"),
    "finding": ("diagnose*", "finding*", "advice", "alert_rules", "runbooks"),
    "toggle": ("toggle_catalog*", "toggle_values"),
    "metric": ("registry", "sql_collector", "dashboard*"),
}


def changes(example: str) -> dict[str, list[tuple[str, str]]]:
    """Return the hunks of an example's diff by file, each as the text before and after the change."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^--- a/", EXAMPLES[example][0], flags=re.M)[1:]:
        head, *hunks = re.split(r"^@@\n", part, flags=re.M)
        name = head.splitlines()[0]
        assert head.splitlines()[1:] == [f"+++ b/{name}"]
        found[name] = [(_side(hunk, "+"), _side(hunk, "-")) for hunk in hunks]
    return found


def _side(hunk: str, omitted: str) -> str:
    """Return one side of a hunk: the lines without the mark ``omitted``, which is "-" or "+"."""
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] != omitted)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the tree, which uses the Rust core of the original."""
    copy = tmp_path / "tree"
    left_out = shutil.ignore_patterns("*.pyc.*", "*.so", "*.png", "build", "fuzz")
    for name in ("agent/innoscope", "dashboards", "docs", "packaging", "probes", "tests"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    for library in (ROOT / "agent" / "innoscope").glob("*.so"):
        (copy / "agent" / "innoscope" / library.name).symlink_to(library)
    return copy


def apply(example: str, tree: Path) -> Path:
    """Apply the example to the copy and run its commands. Return the directory of the copy's catalogs."""
    for name, hunks in changes(example).items():
        path = tree / name
        text = path.read_text()
        for before, after in hunks:
            assert text.count(before) == 1, f"{name}: {text.count(before)} places for the hunk:\n{before}"
            text = text.replace(before, after)
        path.write_text(text)
    commands = EXAMPLES[example][1].replace(".venv/bin/python", sys.executable)
    if commands:
        start(["sh", "-ec", commands.replace("PYTHONPATH=", "PYTHONPATH=$PYTHONPATH:")], tree)
    return tree / "probes" / "catalog"


def start(command: list[str], tree: Path) -> str:
    """Run a command in the copy, with the copied package. Return its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "agent")}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]
    return done.stdout


def run(script: str, tree: Path) -> str:
    """Run a Python script with the copied package. Return its output."""
    return start([sys.executable, "-c", script], tree)


def test_each_section_has_an_example() -> None:
    assert list(EXAMPLES) == ["version", "probe", "wait", "finding", "toggle", "metric"]
    assert len(re.findall("^## ", PAGE, re.M)) == len(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_changes_few_files(example: str) -> None:
    by_hand = [name for name in changes(example) if not name.startswith("tests/")]
    assert 1 <= len(by_hand) <= MOST_FILES


@pytest.mark.parametrize("example", EXAMPLES)
def test_unit_tests_pass_with_the_example(example: str, tree: Path) -> None:
    apply(example, tree)

    unit = tree / "tests" / "unit"
    files = [str(path) for pattern in CHECKS[example] for path in sorted(unit.glob(f"test_{pattern}.py"))]
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tree.with_name('base')}"]
    start([sys.executable, "-m", "pytest", *options, *files], tree)


def test_example_of_a_server_version_works(tree: Path) -> None:
    folder = apply("version", tree)

    probes = probe_catalog.load(folder / "probes.yaml")
    assert probes.knows("mysql", (10, 0, 1))
    site = probes.probes["purge"].site("mysql", (10, 0, 1))
    assert site is not None
    assert site.functions == ("trx_purge_batch",)
    flush_sync = toggle_catalog.load(folder / "toggles.yaml")["flush_sync"]
    generation = toggle_catalog.generation(flush_sync, "mysql", (10, 0, 1))
    assert [backend.kind for backend in generation.backends] == ["sql"]


def test_example_of_a_probe_works(tree: Path) -> None:
    apply("probe", tree)

    text = run(
        "from innoscope.metrics.registry import default\n"
        "from innoscope.probes.c_source import program_text\n"
        "from innoscope.probes.catalog import default_catalog\n"
        "catalog = default_catalog()\n"
        "probe = catalog.probes['table_close']\n"
        "print(default()['innodb_table_closes'].exported)\n"
        "print(program_text(catalog, [(probe, probe.site('mysql', (5, 6, 24)))]))\n",
        tree,
    )
    exported, program = text.split("\n", 1)
    assert exported == "innoscope_innodb_table_closes_total"
    assert "#define HAVE_table_close\n" in program
    assert re.search(r"^#define SLOT_innodb_table_closes \d+$", program, re.M)
    assert "int table_close_enter(struct pt_regs *ctx)" in program


def test_example_of_a_wait_class_works(tree: Path) -> None:
    folder = apply("wait", tree)

    catalog = wait_catalog.load(folder / "waits.yaml")
    stack = frames("libc.so.6!pthread_cond_wait", "os_event::wait_low", "ddl::Loader::Task_queue::mt_execute")
    assert WaitClassifier(catalog).classify(stack) == "index_build"
    colors = (tree / "agent/innoscope/daemon/http/page/colors.js").read_text()
    assert set(re.findall(r"(\w+): \[\d+, \d+, \d+\]", colors)) == catalog.classes.keys()
    documented = re.findall(r"^\| `(\w+)` \|", (tree / "docs/waits.md").read_text(), re.M)
    assert set(documented) >= catalog.classes.keys()
    assert recorded_classes(tree) == recorded_classes(ROOT) - Counter(other=1) + Counter(index_build=1)


def recorded_classes(root: Path) -> Counter[str]:
    """Return the number of recorded stacks by wait class."""
    files = [json.loads(path.read_text()) for path in (root / "tests" / "golden").glob("*.json")]
    return Counter(item["wait"] for items in files for item in items)


def test_example_of_a_finding_works(tree: Path) -> None:
    folder = apply("finding", tree)

    counts = {(CLIENT, "allocator"): 20, (CLIENT, "on_cpu"): 4}
    snapshots = tuple(SnapshotSummary(number, counts) for number in range(10))
    evidence = Evidence({"flavour": "mysql", "version": "5.6.24", "pid": "42"}, 0.0, 10.0, (), snapshots)
    found = judge(evidence, rules.load(folder / "findings.yaml")).findings
    assert ("allocator", "20 threads wait in malloc or free") in [(one.name, one.title) for one in found]


def test_example_of_a_toggle_works(tree: Path, memory_folder: Path) -> None:
    folder = apply("toggle", tree)

    (memory_folder / "server.json").write_text('{"innodb_print_all_deadlocks": false}')
    with subprocess.Popen(["sleep", "600"]) as process:
        world = World(memory_folder, process, toggle_catalog.load(folder / "toggles.yaml"))
        planned = world.plan("on", name="deadlock_log")
        process.kill()
    assert planned.backend.kind == "sql"
    assert [(step.setting, step.new) for step in planned.steps] == [("innodb_print_all_deadlocks", True)]
    assert planned.refusals == ()


def test_example_of_a_metric_works(tree: Path) -> None:
    apply("metric", tree)

    text = run(
        "from innoscope.metrics.collectors import sql_catalog\n"
        "from innoscope.metrics.collectors.sql_plan import Answers, make\n"
        "from innoscope.metrics.families import expose\n"
        "from innoscope.metrics.merge import ExportedSeries\n"
        "from innoscope.metrics.registry import default\n"
        "answers = Answers(status={'Slow_queries': '7'})\n"
        "plan, _ = make(sql_catalog.default(), 'mysql', (5, 6, 24), answers, ['status'])\n"
        "[sample] = [one for one in plan.samples(answers) if one.metric == 'slow_statements']\n"
        "series = ExportedSeries(default()[sample.metric], 'mysql', sample.labels, sample.value)\n"
        "print(expose((series,), '')[0].decode())\n",
        tree,
    )
    assert 'innoscope_slow_statements_total{server="mysql"} 7.0' in text
