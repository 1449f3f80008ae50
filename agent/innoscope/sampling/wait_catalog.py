"""Reading and checking ``probes/catalog/waits.yaml``: the wait classes and the rules that tell them apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile
from innoscope.sampling.descriptors import KINDS, SYSCALLS

if TYPE_CHECKING:
    from pathlib import Path

_CONDITIONS: Final = ("frames", "also", "leaf", "not", "syscall", "file", "comm")
_RULE_KEYS: Final = frozenset({"class", "state", *_CONDITIONS})
_CLASS_KEYS: Final = frozenset({"label", "about", "state"})
_STATES: Final = frozenset({"sleeping", "running"})
_TOP_KEYS: Final = frozenset({"version", "libraries", "classes", "lists", "rules"})
#: Classes the code itself gives out.
_REQUIRED: Final = frozenset({"on_cpu", "other"})


@dataclass(frozen=True, slots=True)
class WaitClass:
    """One wait class. ``state`` (sleeping or running) limits all its rules."""

    id: str
    label: str
    about: str
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: every condition that is not empty must hold. ``line`` counts rules from 1."""

    number: int
    wait: str
    state: str | None
    patterns: dict[str, tuple[str, ...]]  # frames, also, leaf, not, comm
    syscalls: frozenset[str]
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The whole file, checked."""

    classes: dict[str, WaitClass]
    rules: tuple[Rule, ...]
    libraries: tuple[str, ...]


def load(path: Path | None = None) -> Catalog:
    """Read and check the catalog; BadFile names the first problem."""
    path = path or catalog_path("waits.yaml")
    data = read_yaml(path)
    with reading(path):
        found = problems(data)
        if found:
            raise BadFile(f"{path}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""))
        return _build(data)


def problems(data: Any) -> list[str]:
    """What is wrong with a parsed waits.yaml, in words; empty when nothing is."""
    if not isinstance(data, dict):
        return ["the file is not a mapping"]
    found = [f"unknown key {key!r}" for key in data.keys() - _TOP_KEYS]
    if data.get("version") != 1:
        found.append("version is not 1")
    classes = data.get("classes")
    rules = data.get("rules")
    if not isinstance(classes, dict) or not isinstance(rules, list):
        return [*found, "classes must be a mapping and rules a list"]
    found += [f"class {name} is missing" for name in sorted(_REQUIRED - classes.keys())]
    for name, body in classes.items():
        found += _class_problems(name, body)
    for number, rule in enumerate(rules, 1):
        found += [f"rule {number}: {text}" for text in _rule_problems(rule, classes)]
    return found


def _class_problems(name: Any, body: Any) -> list[str]:
    if not isinstance(body, dict) or not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
        return [f"class {name!r} is not snake_case with a mapping"]
    found = [f"class {name}: unknown key {key!r}" for key in body.keys() - _CLASS_KEYS]
    found += [f"class {name}: {key} is missing" for key in ("label", "about") if not body.get(key)]
    if body.get("state", "sleeping") not in _STATES:
        found.append(f"class {name}: unknown state {body['state']!r}")
    return found


def _rule_problems(rule: Any, classes: dict[str, Any]) -> list[str]:
    if not isinstance(rule, dict):
        return ["is not a mapping"]
    found = [f"unknown key {key!r}" for key in rule.keys() - _RULE_KEYS]
    if rule.get("class") not in classes:
        found.append(f"unknown class {rule.get('class')!r}")
    if rule.get("state", "sleeping") not in _STATES:
        found.append(f"unknown state {rule['state']!r}")
    if not any(rule.get(key) for key in _CONDITIONS if key != "not"):
        found.append("has no condition")
    for key in _CONDITIONS:
        value = rule.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            found.append(f"{key} is not a list of strings")
            continue
        found += _value_problems(key, value)
    return found


def _value_problems(key: str, values: list[str]) -> list[str]:
    if key == "syscall":
        return [f"unknown system call {name!r}" for name in values if name not in SYSCALLS]
    if key == "file":
        return [f"unknown kind of file {name!r}" for name in values if name not in KINDS]
    problems = [(pattern, _native.pattern_problem(pattern)) for pattern in values]
    return [f"bad pattern {pattern!r}: {problem}" for pattern, problem in problems if problem]


def _build(data: dict[str, Any]) -> Catalog:
    classes = {
        name: WaitClass(name, body["label"], body["about"], body.get("state"))
        for name, body in data["classes"].items()
    }
    rules = tuple(
        Rule(
            number=number,
            wait=rule["class"],
            state=rule.get("state", classes[rule["class"]].state),
            patterns={
                key: tuple(rule[key]) for key in ("frames", "also", "leaf", "not", "comm") if key in rule
            },
            syscalls=frozenset(rule.get("syscall", ())),
            files=frozenset(rule.get("file", ())),
        )
        for number, rule in enumerate(data["rules"], 1)
    )
    return Catalog(classes, rules, tuple(data.get("libraries", ())))
