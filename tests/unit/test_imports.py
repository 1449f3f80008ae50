"""The architecture holds: imports go one way (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "agent" / "innoscope"

#: Each may import itself and what stands behind it.
ORDER = (
    "cli", "toggles", "agent", "sensor", "exporter", "collectors", "top", "doctor",
    "probes", "memory", "stacks", "metrics", "target", "errors",
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


def modules_from(*starts: str) -> set[str]:
    """All modules of innoscope that these import, directly or not, wherever in them."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        path = PACKAGE.parent / Path(*name.split("."))
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if name in found or not file.exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("innoscope"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.startswith("innoscope")]
    return found


@pytest.mark.parametrize("process", ["agent", "sensor"])
def test_neither_long_lived_process_can_change_a_server(process: str) -> None:
    reached = modules_from(f"innoscope.cli.{process}")

    assert f"innoscope.{process}.main" in reached, "the graph is not followed"
    assert not {name for name in reached if name.startswith("innoscope.toggles")}


def test_the_agent_uses_nothing_of_what_has_privileges() -> None:
    """It tells looks and probes by what the sensor says; naming a server takes only /proc."""
    allowed = {"client", "protocol", "profiles", "naming"}
    reached = {name for name in modules_from("innoscope.cli.agent") if name.startswith("innoscope.sensor.")}

    assert reached <= {f"innoscope.sensor.{part}" for part in allowed}
