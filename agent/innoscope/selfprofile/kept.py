"""The profile that the agent took of itself, kept for ``innoscope doctor``: one file, the last only.

It is a file of speedscope.app, with a part of ours that says when and why. Who reads it may be root and who
wrote it has no privileges, so nothing in it is believed.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope import sanitize
from innoscope.errors import BadFile, CannotWrite
from innoscope.selfprofile import folded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.selfprofile.folded import Stacks

SCHEMA: Final = 1
#: An agent that is restarted again and again does not replace it more often.
FRESH_S: Final = 3600.0
MOST_BYTES: Final = 512 << 10
_MOST_STACKS: Final = 1000
_NAME: Final = "self-profile.speedscope.json"
_PART: Final = "innoscope"
#: Unix time that any calendar can show.
_LATEST: Final = 1e11
_LONGEST_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class Why:
    """``taken_at`` is Unix time. ``used`` and ``budget`` are shares of one core, over ``window_s``."""

    taken_at: float
    pid: int
    version: str
    used: float
    budget: float
    window_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Kept:
    """What the file says: when and why, all samples, and the functions that ran most, ``(name, share)``."""

    why: Why
    samples: int
    top: tuple[tuple[str, float], ...]


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """``$INNOSCOPE_RUN/agent``, else /run/innoscope-agent, which the agent's unit makes for it."""
    own = environment.get("INNOSCOPE_RUN")
    return Path(own) / "agent" if own else Path("/run/innoscope-agent")


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """The file."""
    return folder(environment) / _NAME


def prepare(uid: int, gid: int) -> None:
    """Make the folder, as root, for the user that the agent will be. Raises OSError."""
    place = folder()
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.chown(place, uid, gid, follow_symlinks=False)


def is_fresh() -> bool:
    """Whether there is one that is younger than an hour."""
    try:
        return time.time() - path().stat().st_mtime < FRESH_S
    except OSError:
        return False


def write(stacks: Stacks, why: Why) -> Path:
    """Replace what is there, whole or not at all. Raises CannotWrite."""
    content = _encode(stacks, why)
    partial = folder() / f".{_NAME}.{secrets.token_hex(4)}"
    try:
        folder().mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)  # names of our own functions: any user's doctor may show them
                file.write(content)
            partial.replace(path())
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(
            f"cannot keep the profile in {folder()}: {error.strerror}",
            remedy=f"ls -ld {folder()}; another folder: INNOSCOPE_RUN=FOLDER",
        ) from error
    return path()


def _encode(stacks: Stacks, why: Why) -> bytes:
    """The file's content, with fewer stacks if it would be too large."""
    limit = _MOST_STACKS
    while True:
        document = folded.speedscope(folded.most(stacks, limit), f"innoscope agent, pid {why.pid}")
        document[_PART] = {"schema": SCHEMA, **asdict(why), "top": _top(stacks)}
        content = json.dumps(document, separators=(",", ":")).encode()
        if len(content) <= MOST_BYTES or limit == 1:
            return content
        limit //= 2


def _top(stacks: Stacks) -> list[list[Any]]:
    samples = sum(stacks.values())
    return [[one.name, one.own / samples] for one in folded.functions(stacks)[:5] if one.own]


def read(file: Path) -> Kept | None:
    """What is kept there; None without a file. Raises BadFile, or PermissionError."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise
    except OSError as error:
        raise _bad(file, error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _bad(file, "it is not a file")
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _bad(file, f"it is larger than {MOST_BYTES:,} bytes")
    try:
        return _decode(json.loads(content))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _bad(file, f"{type(error).__name__}: {error}") from error


def _bad(file: Path, words: str) -> BadFile:
    return BadFile(f"{file} is no profile that the agent keeps: {words[:200]}", remedy=f"rm {file}")


def _decode(document: Any) -> Kept:
    told = document[_PART]
    if told["schema"] != SCHEMA:
        raise ValueError(f"schema {told['schema']!r}")
    why = Why(
        taken_at=float(told["taken_at"]),
        pid=int(told["pid"]),
        version=sanitize.line(str(told["version"]), _LONGEST_NAME),
        used=float(told["used"]),
        budget=float(told["budget"]),
        window_s=float(told["window_s"]),
        seconds=float(told["seconds"]),
    )
    if not 0 <= why.taken_at < _LATEST:
        raise ValueError(f"taken at {why.taken_at}")
    top = tuple((sanitize.line(str(name), _LONGEST_NAME), float(share)) for name, share in told["top"][:5])
    return Kept(why, sum(int(weight) for weight in document["profiles"][0]["weights"]), top)
