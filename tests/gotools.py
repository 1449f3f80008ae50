"""Build programs from their Go modules and cache them. The modules' go.sum verifies the downloads."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from servers import cache
from servers.packages import ensure_commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PATIENCE_S = 3_600
_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Return the directory ``name`` of the cache. If it is missing, ``build`` fills it first."""
    home = cache.root() / "tools" / name
    with cache.locked(name):
        if not home.exists():
            ensure_commands("go")
            with cache.made_whole(home) as scratch:
                build(scratch)
    return home


def go(*arguments: str, folder: Path) -> str:
    """Run a go command in ``folder``, and return its output."""
    done = subprocess.run(
        ["go", *arguments],
        cwd=folder, env=os.environ | _ENVIRONMENT,
        capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
