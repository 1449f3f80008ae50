"""Render reports, with one module per output format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.common import sanitize
from innoscope.sampling.render import folded, html, json, pprof, speedscope, text, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.fold import StackReport

FORMATS: Final = ("text", "tree", "folded", "json", "speedscope", "pprof", "html")
#: Formats that consist of bytes instead of text.
BINARY: Final = frozenset({"pprof"})


def render(
    report: StackReport,
    form: str,
    *,
    by: str = "stack",
    limit: int | None = None,
    detail: text.Detail = text.EVERYTHING,
) -> Iterator[str]:
    """Yield the sanitized lines of a report in a text format, without line feeds. JSON is in render/json.py.

    ``detail`` applies to the format ``text``; the other formats always contain everything.
    """
    lines = _lines(report, form, by, limit, detail)
    if form == "html":  # its style, script and SVG contain line feeds and tabs
        return (line for part in lines for line in sanitize.block(part).split("\n"))
    return map(sanitize.line, lines)


def _lines(report: StackReport, form: str, by: str, limit: int | None, detail: text.Detail) -> Iterator[str]:
    if form == "text":
        return text.lines(report, by=by, limit=limit, detail=detail)
    if form == "tree":
        return tree.lines(report)
    if form == "folded":
        return folded.lines(report, limit=limit)
    if form == "speedscope":
        return speedscope.lines(report, limit=limit)
    if form == "html":
        return html.lines(report)
    raise ValueError(f"unknown text format: {form}")


def encode(report: StackReport, form: str, *, limit: int | None = None) -> bytes:
    """Return a whole report in any of FORMATS as bytes. JSON output contains the folded snapshots."""
    if form == "pprof":
        return pprof.encode(report)
    if form == "json":
        return json.profile_line(report).encode() + b"\n"
    lines = render(report, form, limit=limit)
    return "".join(f"{line}\n" for line in lines).encode()
