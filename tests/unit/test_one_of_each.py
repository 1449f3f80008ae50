"""The package has only one implementation each of version ranges, schemas, sanitizing and caching."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "agent" / "innoscope"


def modules_with(pattern: str) -> set[str]:
    """Return the modules of the package that match the pattern."""
    found = re.compile(pattern, re.M)
    paths = (path for path in PACKAGE.rglob("*.py") if found.search(path.read_text()))
    return {str(path.relative_to(PACKAGE)) for path in paths}


def test_one_schema_loader() -> None:
    assert modules_with(r"^(import|from) yaml\b") == {"common/schema.py"}
    assert modules_with(r"\bdef read_(yaml|toml)\b") == {"common/schema.py"}
    assert modules_with(r"\bmsgspec\.(convert|json|yaml|toml)\b|\btomllib\.") == {"common/typed.py"}


def test_only_one_module_defines_version_ranges() -> None:
    assert modules_with(r"^class \w*(VersionRange|Versions|Range)\b") == {"common/versions.py"}
    assert modules_with(r"\bint\b.*\.split\(\"\.\"\)") == {"common/versions.py"}


def test_only_one_module_escapes_text() -> None:
    assert modules_with(r"unicode_escape|isprintable\(\) else \w*escape") == {"common/sanitize.py"}


def test_only_one_module_caches_on_disk() -> None:
    assert modules_with(r"^class \w*Cache\b") == {"common/cache.py"}
    assert modules_with(r"/var/cache/innoscope") == {"common/cache.py"}
