"""The roots of the blocking graph in one line each: who holds what, what it does, how many wait for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.graph import Graph
from innoscope.sampling.lock_sections import inside, own_functions

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.graph import Edge, Root
    from innoscope.memory.locks.held import HeldLock

#: Roots that are shown, and how many wait for one at least, as a share of those that wait for the first.
_SHOWN: Final = 2
_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Blocker:
    """One who holds it: who and what, in words; its stack if it was seen, innermost first.

    ``thread`` and ``connection`` are its ids where they are known, ``lock`` is what it holds, ``waiting`` how
    many wait for it, ``through`` the threads in between (docs/json.md).
    """

    words: str
    stack: tuple[str, ...] = ()
    thread: int | None = None
    connection: int | None = None
    lock: str | None = None
    waiting: int | None = None
    through: tuple[int, ...] = ()


def blockers(evidence: Evidence, *waits: str) -> list[Blocker]:
    """Who the threads in these wait classes wait for in the end; nothing where no owner is known."""
    graph = Graph(evidence)
    roots = graph.roots(waits)
    if not roots:
        return []
    enough = [root for root in roots if root.waiting >= _SHARE * roots[0].waiting]
    return [_blocker(root, graph, evidence) for root in enough[:_SHOWN]]


def _blocker(root: Root, graph: Graph, evidence: Evidence) -> Blocker:
    last = root.path[-1]
    stack = last.held.stack if last.held and last.held.stack else _stack(root.node, evidence)
    words = [f"{_who(root.node, graph)} holds {root.lock}{_turns(last.held)}", *_doing(root, graph, evidence)]
    line = f"{', '.join(words)}; {_waiting(root, graph)}"
    said = graph.statement(root.node)
    return Blocker(
        words=line,
        stack=stack,
        thread=root.node if root.node > 0 else None,
        connection=said.connection if said else -root.node if root.node < 0 else None,
        lock=root.lock,
        waiting=root.waiting,
        through=tuple(edge.owner for edge in root.path[:-1] if edge.owner > 0),
    )


def _who(node: int, graph: Graph) -> str:
    """``connection 42 (thread 1234, app@web1)``, with what is known of it."""
    said = graph.statement(node)
    user = f"{said.user}@{said.host}" if said and said.user else ""
    thread = f"thread {node}" if node > 0 else ""
    about = ", ".join(part for part in (thread, user) if part)
    connection = said.connection if said else -node if node < 0 else None
    if connection is None:
        return about
    return f"connection {connection} ({about})" if about else f"connection {connection}"


def _turns(held: HeldLock | None) -> str:
    """A lock that goes from hand to hand has no single culprit."""
    return f" (one of {held.owners} that held it in turn)" if held and held.owners > 1 else ""


def _doing(root: Root, graph: Graph, evidence: Evidence) -> list[str]:
    held, said = root.path[-1].held, graph.statement(root.node)
    found = []
    if held and held.stack and held.owner_wait != "idle":
        found.append(f"inside {inside(held.stack, _takers(held, evidence))} ({_plain(held.owner_wait)})")
    if said is None:
        return found
    if said.text:
        found.append(f"runs: {said.text}")
    elif said.command == "Sleep" or (held and held.owner_wait == "idle"):
        found.append("idle" + (f" for {said.seconds:,} s" if said.seconds else ""))
    return found


def _takers(held: HeldLock, evidence: Evidence) -> set[str]:
    """The functions that most of its waiters came through."""
    functions: Counter[str] = Counter()
    for seen in evidence.seen:
        if not set(seen.tids).isdisjoint(held.waiters):
            functions.update(dict.fromkeys(own_functions(seen.functions), seen.count))
    return {name for name, count in functions.items() if 2 * count >= functions.most_common(1)[0][1]}


def _waiting(root: Root, graph: Graph) -> str:
    """``899 wait for it``, and through whom."""
    words = f"{root.waiting:,} wait{'s' if root.waiting == 1 else ''} for it"
    between = [f"{_who(edge.owner, graph)}, which holds {edge.lock}" for edge in root.path[:-1]]
    if root.cycle:
        ring = " → ".join(_who(edge.waiter, graph) for edge in _ring(root))
        return f"{words}, in a circle: {ring} → again"
    return f"{words}, through {' and '.join(between)}" if between else words


def _ring(root: Root) -> list[Edge]:
    """The part of the path that comes back to its own begin."""
    start = next(place for place, edge in enumerate(root.path) if edge.waiter == root.node)
    return list(root.path[start:])


def _stack(node: int, evidence: Evidence) -> tuple[str, ...]:
    return next((seen.functions for seen in evidence.seen if node in seen.tids), ())


def _plain(wait: str) -> str:
    return wait.replace("_", " ")
