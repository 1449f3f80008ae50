"""The examples in docs/extending.md work when they are applied to a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from innoscope.diagnose import rules
from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.verdict import judge
from innoscope.probes import catalog as probe_catalog
from innoscope.sampling import wait_catalog
from innoscope.sampling.classify import Classifier
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary
from innoscope.toggles import catalog as toggle_catalog
from unit.snapshots import frames
from unit.toggling import World

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- extending: (\w+) -->\n```diff\n(.*?)```", PAGE, re.S))
#: Maximum number of files that an example may edit by hand, not counting tests and generated pages.
MOST_FILES = 3


def changes(example: str) -> dict[str, list[tuple[str, str]]]:
    """Return the hunks of an example's diff by file, each as the text before and after the change."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^--- a/", EXAMPLES[example], flags=re.M)[1:]:
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
    """Return a copy of the package and its data."""
    shutil.copytree(
        ROOT / "agent" / "innoscope",
        tmp_path / "agent" / "innoscope",
        symlinks=True,
        ignore=shutil.ignore_patterns("__pycache__", "*.so", "vendor"),
    )
    for library in (ROOT / "agent" / "innoscope").glob("*.so"):
        (tmp_path / "agent" / "innoscope" / library.name).symlink_to(library)
    shutil.copytree(ROOT / "probes", tmp_path / "probes")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "waits.md", tmp_path / "docs")
    return tmp_path


def apply(example: str, tree: Path) -> Path:
    """Apply the example to the copy; return the folder of its catalogs."""
    for name, hunks in changes(example).items():
        path = tree / name
        text = path.read_text()
        for before, after in hunks:
            assert text.count(before) == 1, f"{name}: {text.count(before)} places for the hunk:\n{before}"
            text = text.replace(before, after)
        path.write_text(text)
    return tree / "probes" / "catalog"


def run(script: str, tree: Path) -> str:
    """Run a Python script with the copied package. Return its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "agent")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_section_has_an_example() -> None:
    assert list(EXAMPLES) == ["version", "probe", "wait", "finding", "toggle", "metric"]
    assert len(re.findall("^## ", PAGE, re.M)) == len(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_changes_few_files(example: str) -> None:
    assert 1 <= len(changes(example)) <= MOST_FILES


def test_example_of_a_server_version_works(tree: Path) -> None:
    folder = apply("version", tree)

    site = probe_catalog.load(folder / "probes.yaml").probes["purge"].site("mysql", (10, 0, 1))
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
    stack = frames("pread64", "row_merge_read", "row_merge_build_indexes", "mysql_alter_table")
    assert Classifier(catalog).classify(stack) == "index_build"
    colors = (tree / "agent/innoscope/daemon/http/page/colors.js").read_text()
    assert set(re.findall(r"(\w+): \[\d+, \d+, \d+\]", colors)) == catalog.classes.keys()
    documented = re.findall(r"^\| `(\w+)` \|", (tree / "docs/waits.md").read_text(), re.M)
    assert set(documented) >= catalog.classes.keys()


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
        "from innoscope.metrics.merge import Series\n"
        "from innoscope.metrics.registry import default\n"
        "answers = Answers(status={'Sort_merge_passes': '7'})\n"
        "plan, _ = make(sql_catalog.default(), 'mysql', (5, 6, 24), answers, ['status'])\n"
        "[sample] = [one for one in plan.samples(answers) if one.metric == 'sort_merge_passes']\n"
        "series = Series(default()[sample.metric], 'mysql', sample.labels, sample.value)\n"
        "print(expose((series,), '')[0].decode())\n",
        tree,
    )
    assert 'innoscope_sort_merge_passes_total{server="mysql"} 7.0' in text
