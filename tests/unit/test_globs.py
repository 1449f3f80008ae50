"""Globs against the regular expressions that they stand for."""

from __future__ import annotations

import random
import re

import pytest

from innoscope.stacks.catalog import to_regex
from innoscope.stacks.globs import Globs

PATTERNS = [
    "ab", "", "*", "**", "a*", "*a", "*a*", "abc*", "abc*b", "abc*ab", "a*b*c", "*ab*ab*", "abca*b*a*ca",
    "a?c", "?", "*?b", "/a(b|c)+/", "/.*/", "aba*aba", "ab*b",
]  # fmt: skip


def _names() -> list[str]:
    generator = random.Random(7)  # noqa: S311
    return ["", *("".join(generator.choices("abc", k=generator.randint(1, 9))) for _ in range(400))]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_its_expression_does(pattern: str) -> None:
    globs = Globs()
    globs.add(pattern, 5)
    for name in _names():
        expected = {5} if re.fullmatch(to_regex(pattern), name) else set()
        assert globs.matches(name) == expected, name


def test_all_lists_that_match_are_told() -> None:
    globs = Globs()
    for number, pattern in enumerate(PATTERNS):
        globs.add(pattern, number)
        globs.add(pattern, number + 100)
    for name in _names():
        alone = {number for number, pattern in enumerate(PATTERNS) if re.fullmatch(to_regex(pattern), name)}
        assert globs.matches(name) == alone | {number + 100 for number in alone}
