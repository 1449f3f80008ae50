"""Render the call tree, starting at the root, with each function's count in the report's unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from innoscope.sampling.fold import THREADS
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.fold import StackReport


@dataclass(slots=True)
class Node:
    """A function on one call path. ``waits`` contains the counts of stacks that end in it, by wait class."""

    name: str
    count: int = 0
    children: dict[str, Node] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)

    def child(self, name: str) -> Node:
        """Return the node of a callee; create it if it is new."""
        return self.children.setdefault(name, Node(name))


def build(report: StackReport) -> Node:
    """Build the tree of all folded stacks. Unreliable stacks are below a node such as [stale]."""
    root = Node(f"all {report.unit.title}")
    for group in report.fold.by_stack():
        path = words.labels(group)[::-1] or ["[no frames]"]
        for mark, count in words.split(group):
            node = root
            node.count += count
            for name in ([f"[{mark}]"] if mark else []) + path:
                node = node.child(name)
                node.count += count
            node.waits[group.wait] = node.waits.get(group.wait, 0) + count
    return root


def lines(report: StackReport) -> Iterator[str]:
    """Yield the headline and the tree.

    A function with a single callee, in which no stack ends, does not increase the indentation.
    """
    yield words.headline(report)
    yield words.server(report.target)
    for note in (*([report.ended] if report.ended else []), *report.notes):
        yield f"note: {note}"
    yield ""
    show = report.unit.show
    width = max(7, len(show(report.threads)))
    # Not recursive: call chains may be deeper than Python's recursion limit.
    work = [(build(report), "", "")]
    while work:
        node, lead, below = work.pop()
        ends = ", ".join(f"{wait} {show(count)}" for wait, count in node.waits.items())
        count = str(node.count) if report.unit is THREADS else show(node.count)
        yield f"{count:>{width}}  {lead}{node.name}" + (f"  ← {ends}" if ends else "")
        children = sorted(node.children.values(), key=lambda child: (-child.count, child.name))
        if len(children) == 1 and not node.waits:
            work.append((children[0], below, below))
            continue
        for position, child in reversed(list(enumerate(children))):
            last = position == len(children) - 1
            work.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
