"""From C text to code, in a child that bcc and LLVM live and die in; what it made is kept for the next time.

``import bcc`` costs 70 MB and a compile 120 MB, which no daemon should keep, and both take 0.7 s of CPU time,
which a server whose CPUs are all busy should not pay whenever somebody looks at it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.cache import Cache, cache_key
from innoscope.common.data import folder
from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights
from innoscope.probes.object_file import Compiled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: A compile takes about a second of CPU time; a loaded host may need many times that.
_PATIENCE_S: Final = 60.0
#: A host with many servers is there for them: compilers queue up.
_ONE_AT_A_TIME: Final = threading.Lock()
#: Some texts for each build of a server.
_CACHE: Final = Cache("programs", 64)


class BccMissing(InnoscopeError):
    """bcc is not installed for this Python."""

    exit_code = KernelUnable.exit_code


def compiled(text: str, programs: Sequence[str], maps: Sequence[str]) -> Compiled:
    """The code of these programs, these maps among those they use: from the cache, or compiled now.

    Raises BccMissing, NoRights (bcc makes the maps, for which it takes CAP_BPF and CAP_PERFMON, or root) or
    KernelUnable with the compiler's words.
    """
    key = _key(text, programs, maps)
    with _ONE_AT_A_TIME:
        known = _CACHE.read(key)
        with contextlib.suppress(ValueError):  # of another version
            if known is not None:
                return Compiled.unpack(known)
        data = _compile(text, programs, maps)
        made = Compiled.unpack(data)
        _CACHE.write(key, data)
    return made


def forget(text: str, programs: Sequence[str], maps: Sequence[str]) -> bool:
    """Remove what is kept of it; whether there was something."""
    return _CACHE.remove(_key(text, programs, maps))


def _compile(text: str, programs: Sequence[str], maps: Sequence[str]) -> bytes:
    order = {"text": text, "programs": list(programs), "maps": list(maps)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "innoscope.probes.bcc_worker"],
            input=json.dumps(order).encode(),
            capture_output=True,
            timeout=_PATIENCE_S,
            env={**os.environ, "BCC_KERNEL_SOURCE": str(_headers())},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelUnable(
            f"compiling the probes took more than {_PATIENCE_S:.0f} s",
            remedy="try again when the host is less busy",
        ) from error
    if done.returncode != 0:
        raise _explained(done.stderr.decode(errors="replace").strip().splitlines())
    return done.stdout


def _explained(complaints: list[str]) -> InnoscopeError:
    told: dict[str, Any] = {}
    with contextlib.suppress(ValueError, IndexError):
        told = json.loads(complaints[-1])
    kind, words = told.get("kind"), told.get("error", "the compiler ended without a word")
    if kind == "missing":
        return BccMissing(
            f"bcc cannot be loaded: {words}", remedy="apt install python3-bpfcc (python3-bcc on RPM systems)"
        )
    if kind == "rights":
        return NoRights(f"no right to load probes: {words}", remedy="run it as root")
    before = "\n".join(complaints[-6:-1] if told else complaints[-5:])
    return KernelUnable(f"the probes cannot be compiled: {words}\n{before}", remedy="innoscope doctor")


def _headers() -> Path:
    return folder("include") / "shim"


def _key(text: str, programs: Sequence[str], maps: Sequence[str]) -> str:
    """Told apart by what it is made of, and the kernel that bcc asks for features."""
    shim = [path.read_text() for path in sorted(_headers().rglob("*.h"))]
    kernel = os.uname()
    return cache_key(text, *programs, *maps, *shim, kernel.release, kernel.machine)
