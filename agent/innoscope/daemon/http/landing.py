"""Build the page at ``/``. Without scripts, it shows only the state of the sensor and servers, and links."""

from __future__ import annotations

from html import escape
from string import Template
from typing import TYPE_CHECKING

from innoscope.daemon.http import page_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: A server: name, description, whether it is up, ``(collector, None or the reason for its failure)``.
ServerRow = tuple[str, str, "bool | None", "Sequence[tuple[str, str | None]]"]


def page(
    version: str, sensor: str | None, servers: Iterable[ServerRow], links: Iterable[tuple[str, str]]
) -> str:
    """Return the page's HTML. ``sensor`` is the reason why the sensor is unavailable, or None."""
    words = "\n".join(_lines(sensor, list(servers), links))
    template = Template(page_files.template())
    return template.substitute(base=page_files.base(), version=escape(version), words=words)


def _lines(sensor: str | None, servers: list[ServerRow], links: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"<p>Sensor: {_state(True, 'ok') if sensor is None else _state(False, sensor)}</p>"
    if servers:
        yield "<table><thead><tr><th>server</th><th>process</th><th>collectors</th></tr></thead><tbody>"
        for name, description, up, collectors in servers:
            process = "" if up is None else _state(up, "up" if up else "ended")
            lines = "<br>".join(
                f"{escape(collector)}: {_state(reason is None, reason or 'ok')}"
                for collector, reason in collectors
            )
            about = f"{escape(description)}<br>{process}"
            yield f"<tr><td>{escape(name)}</td><td>{about}</td><td>{lines}</td></tr>"
        yield "</tbody></table>"
    else:
        yield "<p>No mysqld or mariadbd is running on this host.</p>"
    yield "<ul>"
    for target, text in links:
        yield f'<li><a href="{escape(target)}">{escape(target)}</a>: {escape(text)}</li>'
    yield "</ul>"


def _state(good: bool, words: str) -> str:
    return f'<span class="{"good" if good else "bad"}">{escape(words)}</span>'
