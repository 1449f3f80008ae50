"""Read and write the golden files: one per server, one stack per line, so that a diff is readable.

Frames are written innermost first, as ``module!function``, or ``module!`` if the function has no symbol.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from innoscope.sampling.classify import default_classifier
from innoscope.sampling.model import Frame

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Golden:
    """A recorded stack and its expected class; ``syscall`` and ``file`` are names."""

    workload: str
    wait: str
    running: bool
    stale: bool
    comm: str
    syscall: str | None
    file: str | None
    frames: tuple[str, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Return the inputs of the classifier, which identify a stack."""
        return (self.running, self.stale, self.comm, self.syscall, self.file, self.frames)


def servers() -> list[str]:
    """Return the names of the servers with golden stacks."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read(server: str) -> list[Golden]:
    """Return all golden stacks of a server; an empty list if it has no file yet."""
    path = FOLDER / f"{server}.json"
    if not path.exists():
        return []
    return [Golden(**{**item, "frames": tuple(item["frames"])}) for item in json.loads(path.read_text())]


def write(server: str, stacks: list[Golden]) -> None:
    """Replace a server's golden stacks, sorted by class."""
    ordered = sorted(stacks, key=lambda item: (item.wait, item.frames, item.workload, str(item.syscall)))
    rows = [
        {name: getattr(item, name) for name in Golden.__slots__} | {"frames": list(item.frames)}
        for item in ordered
    ]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (FOLDER / f"{server}.json").write_text(f"[\n{lines}\n]\n")


def classify(item: Golden) -> str:
    """Return the current class of a recorded stack."""
    return default_classifier().classify(
        unpack(item.frames),
        comm=item.comm,
        syscall=item.syscall,
        file=item.file,
        running=item.running,
        stale=item.stale,
    )


def pack(frames: tuple[Frame, ...]) -> tuple[str, ...]:
    """Format frames as text."""
    return tuple(f"{frame.module}!{frame.function or ''}" for frame in frames)


def unpack(frames: tuple[str, ...]) -> tuple[Frame, ...]:
    """Parse text as frames."""
    pairs = (frame.partition("!") for frame in frames)
    return tuple(Frame(function or None, module, 0) for module, _, function in pairs)
