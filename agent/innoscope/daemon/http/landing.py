"""The page at ``/``: a frame that scripts fill, and for who has none what works and why the rest does not."""

from __future__ import annotations

from html import escape
from string import Template
from typing import TYPE_CHECKING

from innoscope.daemon.http import page_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: One server: name, what it is, whether it is up, ``(collector, None or why it failed)``.
Row = tuple[str, str, "bool | None", "Sequence[tuple[str, str | None]]"]


def page(version: str, sensor: str | None, servers: Iterable[Row], links: Iterable[tuple[str, str]]) -> str:
    """The HTML. ``sensor`` says why the sensor is of no help, None if it is."""
    words = "\n".join(_lines(sensor, list(servers), links))
    template = Template(page_files.template())
    return template.substitute(base=page_files.base(), version=escape(version), words=words)


def _lines(sensor: str | None, servers: list[Row], links: Iterable[tuple[str, str]]) -> Iterator[str]:
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
    yield "</ul>"


def _state(good: bool, words: str) -> str:
    return f'<span class="{"good" if good else "bad"}">{escape(words)}</span>'
