"""The page at ``/``: which servers, what works, why the rest does not. No script, nothing loaded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1c1e21;
background:#fff}h1{font-size:1.4rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #ddd;vertical-align:top}
.bad{color:#b3261e}.good{color:#146c2e}a{color:#0b57d0}
@media(prefers-color-scheme:dark){body{color:#e3e3e3;background:#1b1b1b}th,td{border-color:#444}
a{color:#a8c7fa}.bad{color:#f2b8b5}.good{color:#8fd6a0}}"""

#: One server: name, what it is, whether it is up, ``(collector, None or why it failed)``.
Row = tuple[str, str, "bool | None", "Sequence[tuple[str, str | None]]"]


def page(version: str, sensor: str | None, servers: Iterable[Row], links: Iterable[tuple[str, str]]) -> str:
    """The HTML. ``sensor`` says why the sensor is of no help, None if it is."""
    return "\n".join(_lines(version, sensor, list(servers), links))


def _lines(
    version: str, sensor: str | None, servers: list[Row], links: Iterable[tuple[str, str]]
) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Innoscope</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{_STYLE}</style></head><body>"
    yield f"<h1>Innoscope {escape(version)}</h1>"
    yield f"<p>Sensor: {_state(True, 'it answers') if sensor is None else _state(False, sensor)}</p>"
    if servers:
        yield "<table><thead><tr><th>server</th><th>process</th><th>collectors</th></tr></thead><tbody>"
        for name, what, up, collectors in servers:
            process = "" if up is None else _state(up, "up" if up else "ended")
            lines = "<br>".join(
                f"{escape(collector)}: {_state(why is None, why or 'ok')}" for collector, why in collectors
            )
            yield f"<tr><td>{escape(name)}</td><td>{escape(what)}<br>{process}</td><td>{lines}</td></tr>"
        yield "</tbody></table>"
    else:
        yield "<p>No mysqld or mariadbd is running on this host.</p>"
    yield "<ul>"
    for target, text in links:
        yield f'<li><a href="{escape(target)}">{escape(target)}</a>: {escape(text)}</li>'
    yield "</ul></body></html>"


def _state(good: bool, words: str) -> str:
    return f'<span class="{"good" if good else "bad"}">{escape(words)}</span>'
