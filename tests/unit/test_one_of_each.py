"""The package has only one implementation each of version ranges, schemas, sanitizing and caching.

A class name has only one meaning.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
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


def test_only_one_module_decodes_json() -> None:
    # msgspec can parse neither infinite samples nor lone surrogates.
    standard_library = {"common/typed.py", "daemon/protocol/messages.py", "diagnose/incident/files.py"}
    assert modules_with(r"\bjson\.loads?\(|\bJSONDecoder\b") == standard_library


def test_no_module_checks_the_types_of_json_by_hand() -> None:
    """Check that only the outermost value of a message or an incident file is tested for being an object."""
    assert modules_with(r"\bisinstance\([^()]*(\([^()]*\))?, dict\)|type\(\w+\) is not ") == {
        "daemon/protocol/client.py",
        "daemon/sensor/server.py",
        "diagnose/incident/codec.py",
        "diagnose/incident/files.py",
    }


def test_only_one_module_defines_version_ranges() -> None:
    assert modules_with(r"^class \w*(VersionRange|Versions|Range)\b") == {"common/versions.py"}
    assert modules_with(r"\bint\b.*\.split\(\"\.\"\)") == {"common/versions.py"}


def test_only_one_module_escapes_text() -> None:
    assert modules_with(r"unicode_escape|isprintable\(\) else \w*escape") == {"common/sanitize.py"}


def test_only_one_module_caches_on_disk() -> None:
    assert modules_with(r"^class \w*Cache\b") == {"common/cache.py"}
    assert modules_with(r"/var/cache/innoscope") == {"common/cache.py"}


def public_types() -> dict[str, list[str]]:
    """Return where each public class, and each type alias with the name of a class, is defined."""
    classes, aliases = defaultdict(list), defaultdict(list)
    for path in [*PACKAGE.rglob("*.py"), PACKAGE / "_native.pyi"]:
        module = str(path.relative_to(PACKAGE))
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(module)
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                if isinstance(target, ast.Name):
                    aliases[target.id].append(module)
    return {name: modules + aliases[name] for name, modules in classes.items()}


def test_a_class_name_has_one_meaning() -> None:
    assert {name: modules for name, modules in public_types().items() if len(modules) > 1} == {}
