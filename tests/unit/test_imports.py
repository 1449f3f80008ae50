"""The architecture holds: imports go one way (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "agent" / "innoscope"

#: Each may import itself and what stands behind it.
ORDER = (
    "cli", "agent", "sensor", "exporter", "collectors", "top", "doctor",
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
