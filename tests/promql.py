"""Analyze PromQL queries with promql-parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import promql_parser as parser

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPERATORS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}

#: Functions that accept a counter.
OF_COUNTERS = ("rate", "irate", "increase", "resets")


@dataclass(frozen=True, slots=True)
class Use:
    """A selector of a query.

    ``matchers`` map labels to (operator, value). ``around`` lists the functions and aggregations around it,
    outermost first. ``grouped`` contains the labels of their ``by`` clauses.
    """

    name: str
    matchers: dict[str, tuple[str, str]]
    around: tuple[str, ...]
    interval_seconds: float | None
    grouped: frozenset[str]

    @property
    def labels(self) -> set[str]:
        """Return the labels in the selector's matchers and in the ``by`` clauses around it."""
        return set(self.matchers) | self.grouped

    @property
    def values(self) -> dict[str, set[str]]:
        """Return the words that each label is compared with; omit the labels of the dashboards' variables."""
        return {
            label: set(re.findall(r"\w+", value))
            for label, (_, value) in self.matchers.items()
            if label not in ("job", "instance", "server")
        }


def uses(expr: str) -> list[Use]:
    """Return all selectors of a query. Raise ValueError if the query is malformed."""
    return list(_walk(parser.parse(expr), (), frozenset()))


def _walk(node: Any, around: tuple[str, ...], grouped: frozenset[str]) -> Iterator[Use]:
    match node:
        case parser.VectorSelector():
            yield _use(node, around, None, grouped)
        case parser.MatrixSelector():
            yield _use(node.vector_selector, around, node.range.total_seconds(), grouped)
        case parser.Call():
            for argument in node.args:
                yield from _walk(argument, (*around, node.func.name), grouped)
        case parser.AggregateExpr():
            labels = frozenset(node.modifier.labels) if node.modifier and _by(node) else frozenset()
            yield from _walk(node.expr, (*around, str(node.op)), grouped | labels)
        case parser.BinaryExpr():
            for side in (node.lhs, node.rhs):
                yield from _walk(side, around, grouped)
        case parser.ParenExpr() | parser.UnaryExpr() | parser.SubqueryExpr():
            yield from _walk(node.expr, around, grouped)


def _by(node: Any) -> bool:
    return "by" in str(node.modifier.type).lower()


def _use(node: Any, around: tuple[str, ...], seconds: float | None, grouped: frozenset[str]) -> Use:
    matchers = {one.name: (_OPERATORS[str(one.op)], one.value) for one in node.matchers.matchers}
    return Use(node.name, matchers, around, seconds, grouped)
