"""Malformed examples in the documentation are rejected. docs/contributing.md lists the rules for examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live.examples import difference, examples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "block",
    [
        "```console\nwithout a prompt\n```\n",
        "```console\n```\n",
        "<!-- example: oracle -->\n```console\n$ innoscope targets\n```\n",
    ],
)
def test_malformed_example_is_refused(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises(ValueError, match=r"page\.md:"):
        list(examples(page))


@pytest.mark.parametrize(
    ("shown", "real", "missing"),
    [
        (
            ("1,029 threads in 11.1 ms: 904 idle, … · not stopped",),
            "3 threads in 1.2 s: 1 idle · not stopped\nmore",
            None,
        ),
        (("pid 28817 at /run/mysqld/mysqld.sock",), "pid 1 at /tmp/a-b/s.sock", None),
        (("head 1", "not compared", "", "  table  of", "row"), "head 2\nother\n\ntable   of\n", None),
        ((), "anything", None),
        (("1 thread",), "one thread", "1 thread"),
        (("head",), "before\nhead", "head"),
        (("head", "", "second"), "head\nthird", "second"),
        (("head", "", "second", "", "third"), "head\nthird\nsecond", "third"),
        (("head",), "", "head"),
        (("904 idle, … done",), "904 idle, 3 others", "904 idle, … done"),
        (("12 exact · not stopped",), "10 exact, 2 on-cpu · not stopped", None),
        (("12 exact · not stopped",), "10 exact, 2 torn · not stopped", "12 exact · not stopped"),
    ],
)
def test_output_must_have_the_first_line_of_each_paragraph(
    shown: tuple[str, ...], real: str, missing: str | None
) -> None:
    assert difference(shown, real) == missing
