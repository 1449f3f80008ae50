"""Compile C to BPF code in a child process, and cache the result.

``import bcc`` takes 70 MB of memory and a compilation takes 120 MB. That is too much for a daemon, so each
compilation runs in a short-lived child process. Import and compilation take 0.7 s of CPU time. The result is
cached, so that later starts do not take this time from a busy server.
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

#: Timeout of a compilation in seconds. It takes about 1 s of CPU time, but minutes on a loaded or slow host.
_TIMEOUT_S: Final = 300.0
#: Lock held during a compilation, so that only one compiler runs at a time, even with many servers.
_ONE_AT_A_TIME: Final = threading.Lock()
#: At most 64 files; each server build needs only a few.
_CACHE: Final = Cache("programs", 64)


class BccMissing(InnoscopeError):
    """bcc is not installed for this Python."""

    exit_code = KernelUnable.exit_code


def compile_cached(text: str, programs: Sequence[str], maps: Sequence[str]) -> Compiled:
    """Return the code of ``programs`` and the maps that the code uses, from the cache if possible.

    Raise BccMissing, NoRights (to create the maps, bcc needs CAP_BPF and CAP_PERFMON, or root) or
    KernelUnable with the compiler's message.
    """
    key = _key(text, programs, maps)
    with _ONE_AT_A_TIME:
        cached = _CACHE.read(key)
        with contextlib.suppress(ValueError):  # written by another version
            if cached is not None:
                return Compiled.unpack(cached)
        data = _compile(text, programs, maps)
        compiled = Compiled.unpack(data)
        _CACHE.write(key, data)
    return compiled


def discard(text: str, programs: Sequence[str], maps: Sequence[str]) -> bool:
    """Remove the cached code of ``programs``. Return whether it existed."""
    return _CACHE.remove(_key(text, programs, maps))


def _compile(text: str, programs: Sequence[str], maps: Sequence[str]) -> bytes:
    request = {"text": text, "programs": list(programs), "maps": list(maps)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "innoscope.probes.bcc_worker"],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "BCC_KERNEL_SOURCE": str(_headers())},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KernelUnable(
            f"cannot compile the probes: it took more than {_TIMEOUT_S:.0f} s",
            remedy="try again when the host is less busy",
        ) from error
    if done.returncode != 0:
        raise _error_from(done.stderr.decode(errors="replace").strip().splitlines())
    return done.stdout


def _error_from(lines: list[str]) -> InnoscopeError:
    report: dict[str, Any] = {}
    with contextlib.suppress(ValueError, IndexError):
        report = json.loads(lines[-1])
    kind, message = report.get("kind"), report.get("error", "the compiler printed no reason")
    if kind == "missing":
        return BccMissing(
            f"cannot load bcc: {message}", remedy="apt install python3-bpfcc (python3-bcc on RPM systems)"
        )
    if kind == "rights":
        return NoRights(f"cannot load probes: permission denied: {message}", remedy="run it as root")
    output = "\n".join(lines[-6:-1] if report else lines[-5:])
    return KernelUnable(f"cannot compile the probes: {message}\n{output}", remedy="innoscope doctor")


def _headers() -> Path:
    return folder("include") / "shim"


def _key(text: str, programs: Sequence[str], maps: Sequence[str]) -> str:
    """Return the cache key for the inputs, the headers and the kernel, whose features bcc detects."""
    shim = [path.read_text() for path in sorted(_headers().rglob("*.h"))]
    kernel = os.uname()
    return cache_key(text, *programs, *maps, *shim, kernel.release, kernel.machine)
