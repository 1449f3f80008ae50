"""Define the two sizes of the suite: `make test`, which every change must pass, and `make test-all`.

A test that the quick suite does not need is marked ``@long("reason")``. A test that repeats its work gets the
number of repetitions from ``count``. A test with many parameters selects a few of them with ``few``. The
option ``--full`` selects the full suite. The ``--repetitions`` option sets the number for tests that use
``repetitions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

#: Marks tests that run only with ``--full``. The reason names their substitute in the quick suite.
long = pytest.mark.long

_Value = TypeVar("_Value", int, float)


class _Chosen:
    """The size of this run. tests/conftest.py sets it before pytest imports any test."""

    full = False
    repetitions: int | None = None


chosen = _Chosen()


def count(*, quick: _Value, full: _Value) -> _Value:
    """Return the number of repetitions, rounds or seconds for this run."""
    return full if chosen.full else quick


def repetitions(*, quick: int, full: int) -> int:
    """Return the number given by ``--repetitions`` or, without this option, the result of ``count``."""
    return count(quick=quick, full=full) if chosen.repetitions is None else chosen.repetitions


def few(values: Iterable[object], *quick: object, reason: str) -> list[ParameterSet]:
    """Return parameters for all values; those that are not among ``quick`` are marked ``long``."""
    values = list(values)
    unknown = [value for value in quick if value not in values]
    if unknown:
        raise ValueError(f"not among the values: {unknown}")
    return [pytest.param(value, marks=() if value in quick else long(reason)) for value in values]
