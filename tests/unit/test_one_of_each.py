"""There is one version range, one schema loader, one sanitizer and one cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.versions import VersionRange

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "agent" / "innoscope"
CATALOGS = sorted((ROOT / "probes" / "catalog").glob("*.yaml"))


def modules_with(pattern: str) -> set[str]:
    """Return the modules of the package in which the pattern occurs."""
    found = re.compile(pattern, re.M)
    paths = (path for path in PACKAGE.rglob("*.py") if found.search(path.read_text()))
    return {str(path.relative_to(PACKAGE)) for path in paths}


def items(node: Any) -> Iterator[tuple[str, Any]]:
    """Return all keys of a parsed YAML file with their values."""
    if isinstance(node, dict):
        yield from node.items()
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from items(value)


def test_one_schema_loader() -> None:
    assert modules_with(r"^(import|from) yaml\b") == {"common/schema.py"}
    assert modules_with(r"\bdef read_(yaml|toml)\b") == {"common/schema.py"}
    assert modules_with(r"\bmsgspec\.(convert|json|yaml|toml)\b|\btomllib\.") == {"common/typed.py"}


def test_one_version_range() -> None:
    assert modules_with(r"^class \w*(VersionRange|Versions|Range)\b") == {"common/versions.py"}
    assert modules_with(r"\bint\b.*\.split\(\"\.\"\)") == {"common/versions.py"}


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: path.name)
def test_one_notation_of_version_ranges(path: Path) -> None:
    for key, value in items(yaml.safe_load(path.read_text())):
        assert key not in ("from", "since", "only")
        if key in ("mysql", "mariadb") and not isinstance(value, dict | list):
            assert str(VersionRange.parse(value)) == value


def test_one_sanitizer() -> None:
    assert modules_with(r"unicode_escape|isprintable\(\) else \w*escape") == {"common/sanitize.py"}


def test_one_cache() -> None:
    assert modules_with(r"^class \w*Cache\b") == {"common/cache.py"}
    assert modules_with(r"/var/cache/innoscope") == {"common/cache.py"}
