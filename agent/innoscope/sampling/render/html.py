"""Render an offline HTML page: headline, wait classes, flame graph, and a searchable list of stacks."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.render import folded, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.fold import FoldedGroup, StackReport

_STYLE = """
:root{color-scheme:light dark;--bar:#4a90d9}
body{font:15px/1.5 system-ui,sans-serif;max-width:1240px;margin:2em auto;padding:0 1em}
h1{font-size:1.25em;margin-bottom:.2em} h2{font-size:1.05em;margin-top:2em}
.dim{opacity:.7} .mark{color:#c0392b}
table{border-collapse:collapse;width:100%}
td,th{padding:.25em .8em .25em 0;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr[data-wait]{cursor:pointer}
tr.on{outline:2px solid var(--bar)} .bar{height:.7em;background:var(--bar);min-width:1px}
input{font:inherit;width:100%;box-sizing:border-box;padding:.4em .6em;margin:.5em 0}
code{font:12.5px/1.45 ui-monospace,monospace;overflow-wrap:anywhere} .q{opacity:.75}
.flame svg{width:100%;height:auto;background:#fff;border-radius:4px}
"""
_SCRIPT = """
(function () {
  var box = document.getElementById('find'), wait = '', rows = document.querySelectorAll('#stacks tbody tr');
  function show() {
    var text = box.value.toLowerCase(), count = 0;
    rows.forEach(function (row) {
      var on = (!wait || row.dataset.of === wait) && row.textContent.toLowerCase().indexOf(text) >= 0;
      row.hidden = !on;
      if (on) count += +row.dataset.count;
    });
    document.getElementById('found').textContent =
      (count / box.dataset.scale).toLocaleString('en') + ' ' + box.dataset.unit;
  }
  document.querySelectorAll('tr[data-wait]').forEach(function (row) {
    row.addEventListener('click', function () {
      wait = wait === row.dataset.wait ? '' : row.dataset.wait;
      document.querySelectorAll('tr[data-wait]').forEach(function (other) {
        other.classList.toggle('on', other.dataset.wait === wait);
      });
      show();
    });
  });
  box.addEventListener('input', show);
  show();
})();
"""
# The page must not load anything, regardless of the contents of statements and thread names.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def lines(report: StackReport) -> Iterator[str]:
    """Yield the parts of the HTML page."""
    title = escape(words.server(report.target))
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield f"<title>Stacks of {title}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(words.headline(report))}</h1>"
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.started_at))
    yield f'<p class="dim">{title} · {taken}</p>'
    for note in (*([report.ended] if report.ended else []), *report.notes):
        yield f"<p>Note: {escape(note)}</p>"
    yield from _wait_table(report)
    yield "<h2>Flame graph</h2>"
    yield f'<div class="flame">{_flame(report)}</div>'
    yield from _stack_table(report)
    yield f"<script>{_SCRIPT}</script></body></html>"


def _flame(report: StackReport) -> str:
    """Return the SVG as an inline element, or a message if the report is empty."""
    stacks = list(folded.lines(report))
    if not stacks:
        return f"<p>No {report.unit.name}.</p>"

    svg = _native.flamegraph(
        stacks,
        title=words.server(report.target),
        subtitle=report.headline or words.trust(report.tally),
        count_name=report.unit.name,
    )
    return svg[max(svg.find("<svg"), 0) :]  # without the XML declaration and the doctype


def _wait_table(report: StackReport) -> Iterator[str]:
    classes = default_classifier().catalog.classes
    yield "<h2>What the threads wait for</h2><table><thead><tr>"
    show = report.unit.show
    yield f'<th class="n">{report.unit.title}<th class="n">share<th>class<th>'
    yield '<th style="width:35%"></thead><tbody>'
    for group in report.fold.by_wait():
        share = 100 * group.count / max(report.shown, 1)
        known = classes.get(group.wait)
        name, about = (known.label, known.about) if known else (group.wait, "")
        yield (
            f'<tr data-wait="{escape(group.wait)}"><td class="n">{show(group.count)}'
            f'<td class="n">{share:.1f} %'
            f'<td>{escape(name)}<td class="dim">{escape(about)} {_marks(group, report)}'
            f'<td><div class="bar" style="width:{share:.2f}%"></div>'
        )
    yield "</tbody></table>"


def _stack_table(report: StackReport) -> Iterator[str]:
    yield "<h2>Stacks</h2>"
    unit = report.unit
    yield (
        f'<input id="find" type="search" data-scale="{unit.scale}" data-unit="{unit.title}" '
        'placeholder="Search functions, classes and statements">'
    )
    yield '<p class="dim" id="found"></p><table id="stacks"><thead><tr>'
    yield f'<th class="n">{unit.title}<th>class<th>stack, innermost function first</thead><tbody>'
    for group in report.fold.by_stack():
        stack = escape(" ‹ ".join(words.labels(group)) or "[no frames]")
        queries = "".join(
            f'<br><span class="q">{count}× {escape(words.clean(text))}</span>'
            for text, count in group.queries.most_common(3)
        )
        yield (
            f'<tr data-of="{escape(group.wait)}" data-count="{group.count}"><td class="n">{group.count:,}'
            f"<td>{escape(group.wait)}<td>{_marks(group, report)}<code>{stack}{queries}</code>"
        )
    yield "</tbody></table>"


def _marks(group: FoldedGroup, report: StackReport) -> str:
    marks = words.marks(group, report.unit)
    return f'<span class="mark">{escape(marks)}</span> ' if marks else ""
