"""The architecture holds: imports go one way (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "agent" / "innoscope"

#: Each may import itself and what stands behind it.
ORDER = (
    "cli", "symbols", "profile", "toggles", "agent", "push", "sensor", "watch", "incident", "diagnose",
    "exporter", "collectors", "top", "doctor", "trace", "probes", "memory", "stacks", "metrics",
    "target", "errors",
)  # fmt: skip


def imported(path: Path) -> set[str]:
    """The parts of innoscope that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("innoscope"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found & set(ORDER)


@pytest.mark.parametrize("part", ORDER[:-1])
def test_imports_go_one_way(part: str) -> None:
    allowed = set(ORDER[ORDER.index(part) :])
    for path in (PACKAGE / part).rglob("*.py"):
        against = imported(path) - allowed
        assert not against, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(against))}"


def file_of(module: str) -> Path:
    path = PACKAGE.parent / Path(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def modules_from(*starts: str) -> set[str]:
    """All modules of innoscope that these import, directly or not, wherever in them.

    Also those whose names they have as text: what they import by name, and what they start with ``-m``.
    """
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        file = file_of(name)
        if name in found or not file.exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("innoscope"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.startswith("innoscope")]
            elif isinstance(node, ast.Constant) and re.fullmatch(r"innoscope(\.\w+)+", str(node.value)):
                waiting.append(str(node.value))
    return found


def starting(modules: set[str]) -> set[str]:
    """Those of them that can start another program."""
    means = re.compile(
        r"\b(subprocess|multiprocessing|pty|posix_spawn\w*|os\.(exec|spawn|system|popen)\w*)\b"
    )
    return {name for name in modules if means.search(file_of(name).read_text())}


#: A process that lives long: who in it starts what. It begins in cli.main, which imports its command only.
DAEMONS = {
    "agent": {"innoscope.agent.child": "innoscope.cli.main"},  # a sensor, by hand as root
    "sensor": {"innoscope.probes.compiling": "innoscope.probes.compiler"},
}


@pytest.mark.parametrize("process", DAEMONS)
def test_neither_long_lived_process_can_change_a_server(process: str) -> None:
    reached = modules_from("innoscope.cli.main", f"innoscope.cli.{process}")

    assert f"innoscope.{process}.main" in reached, "the graph is not followed"
    assert not {name for name in reached if name.startswith("innoscope.toggles")}
    assert not reached & {"innoscope.cli.toggle", "innoscope.cli.unstick"}


@pytest.mark.parametrize("process", DAEMONS)
def test_nor_can_what_they_start(process: str) -> None:
    reached = modules_from("innoscope.cli.main", f"innoscope.cli.{process}")

    assert starting(reached) == set(DAEMONS[process]), "somebody else can start programs"
    assert set(DAEMONS[process].values()) <= reached, "what is started is not followed"


def test_the_command_that_the_agent_starts_is_the_sensor() -> None:
    words = [
        [item.value for item in node.elts if isinstance(item, ast.Constant)]
        for node in ast.walk(ast.parse(file_of("innoscope.agent.child").read_text()))
        if isinstance(node, ast.List)
    ]

    assert ["-P", "-m", "innoscope.cli.main", "sensor", "--socket"] in words


def test_no_long_lived_process_starts_py_spy() -> None:
    reached = modules_from(*(f"innoscope.cli.{process}" for process in DAEMONS), "innoscope.cli.main")
    naming = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if '"py-spy"' in path.read_text()
    }

    assert naming == {"cli/selfprofile.py"}
    assert "innoscope.cli.selfprofile" not in reached


def test_the_agent_uses_nothing_of_what_has_privileges() -> None:
    """It tells looks and probes by what the sensor says; naming a server takes only /proc."""
    allowed = {"client", "protocol", "profiles", "naming"}
    reached = {name for name in modules_from("innoscope.cli.agent") if name.startswith("innoscope.sensor.")}

    assert reached <= {f"innoscope.sensor.{part}" for part in allowed}


def test_what_we_start_is_not_looked_for_in_the_current_folder() -> None:
    """``python -m`` looks there first, and root may stand in /tmp: -P."""
    started = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List):
                words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
                if "-m" in words:
                    started.append((path.name, words[words.index("-m") - 1]))

    assert len(started) >= 3
    assert {before for _, before in started} == {"-P"}, started
