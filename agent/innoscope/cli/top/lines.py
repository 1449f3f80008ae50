"""Format the lines of the view as plain text of a given width, independently of the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from innoscope.cli.top.history import bar, sparkline
from innoscope.sampling.classify import server_frames
from innoscope.sampling.render.words import clean, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from innoscope.cli.top.frame import StackRow
    from innoscope.sampling.model import Frame, Snapshot

_SUFFIX = re.compile(
    r"\.(?:isra|part|constprop|cold|lto_priv|llvm)(?:\.\d+)*| \[clone [^]]*\]|@@?[A-Z]+[\w.]*|@plt"
)


def fit(text: str, columns: int) -> str:
    """Return the text padded to exactly ``columns`` cells, or truncated with an ellipsis."""
    if columns <= 0:
        return ""
    if cell_len(text) <= columns:
        return set_cell_size(text, columns)
    return set_cell_size(text, columns - 1) + "…"


def clock(moment: float) -> str:
    """Format a Unix time as local time of day."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%H:%M:%S")


def short(label: str) -> str:
    """Return a function's name without parameters, template arguments, return type and compiler suffixes."""
    name = label.replace("(anonymous namespace)::", "")
    if "operator" in name:
        return name
    name = _SUFFIX.sub("", name)
    name = name.split("(", 1)[0] if not name.startswith("(") else name
    while (bare := re.sub(r"<[^<>]*>", "", name)) != name:
        name = bare
    return name.rsplit(" ", 1)[-1] or label


def leaf_first(frames: tuple[Frame, ...], wait: str) -> str:
    """Return ``innermost ← caller ← …``, from the server's own innermost function outward."""
    shown = server_frames(frames, wait)
    return " ← ".join(short(clean(frame.label)) for frame in shown) or "(no frames)"


def server(snapshot: Snapshot) -> str:
    """Return the server's flavour, version and pid, for example ``MySQL 5.6.24 pid 1234``."""
    target = snapshot.target
    flavour = {"mysql": "MySQL", "mariadb": "MariaDB"}.get(target.flavour, target.flavour)
    version = ".".join(map(str, target.version)) or "(version unknown)"
    return f"{clean(flavour)} {version} pid {target.pid}"


def headline(snapshot: Snapshot, columns: int) -> str:
    """Return a line with server, thread count, duration and method, and the time at the right edge."""
    touched = "each thread stopped briefly" if snapshot.method == "ptrace" else "not stopped"
    took = f"{len(snapshot.threads):,} threads in {milliseconds(snapshot.duration_ms)}"
    right = clock(snapshot.taken_at)
    left = f"{server(snapshot)} · {took} · {snapshot.method}, {touched}"
    return f"{fit(left, columns - len(right) - 1)} {right}"


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths of a line and its columns. All lines have the same widths, so that the columns are aligned."""

    line: int
    name: int  # width of the wait class column, which fits the widest label within limits

    @classmethod
    def of(cls, columns: int, labels: Iterable[str]) -> Widths:
        """Return widths for these labels. Names get at most ``max(12, columns // 4)`` cells."""
        widest = max((cell_len(label) for label in labels), default=0)
        return cls(columns, min(max(widest, len("WAIT CLASS")), max(12, columns // 4)))

    @property
    def spark(self) -> int:
        """Return the width of the sparkline: 60 columns (one per second), or 30 or 15 on narrow screens."""
        return 60 if self.line >= 120 else 30 if self.line >= 76 else 15

    @property
    def bar(self) -> int:
        """Return the width of the bar: the space that name, count and sparkline leave."""
        return max(3, self.line - self.name - 10 - self.spark)


def waits_head(widths: Widths) -> str:
    """Return the heading of the list of wait classes."""
    text = f"{fit('WAIT CLASS', widths.name)} {'threads':>7} {fit('now', widths.bar)} last minute"
    return fit(text, widths.line)


def wait_line(label: str, count: int, highest: int, series: Sequence[int | None], widths: Widths) -> str:
    """Return the line of one wait class: its name, thread count, bar and sparkline."""
    filled = fit(bar(count, highest, widths.bar), widths.bar)
    return f"{fit(clean(label), widths.name)} {count:>7,} {filled} {sparkline(series)}"


def stacks_head(widths: Widths, sort: str) -> str:
    """Return the heading of the list of stacks. ``sort`` is the name of the order."""
    left = f"threads change {fit('CLASS', widths.name)} STACK, innermost function first"
    right = f"by {sort}"
    return f"{fit(left, widths.line - len(right) - 1)} {right}"


def stack_lines(row: StackRow, label: str, widths: Widths) -> list[str]:
    """Return the line of a stack and, if its threads are running statements, the most frequent statement."""
    change = f"{row.change:+,}" if row.change else "·"
    marks = f"{row.group.marks} " if row.group.marks else ""
    name = fit(clean(label), widths.name)
    lines = [
        fit(f"{row.count:>7,} {change:>6} {name} {marks}{leaf_first(row.frames, row.wait)}", widths.line)
    ]
    if row.queries:
        (text, count), *others = row.queries.most_common()
        more = f" (and {len(others):,} more)" if others else ""
        lines.append(fit(f"{'':14} └ {count:,}×{more} {clean(text)}", widths.line))
    return lines
