"""Compile C to BPF code in a child process, and cache the result.

``import bcc`` takes 70 MB of memory and a compilation takes 120 MB. That is too much for a daemon, so each
compilation runs in a short-lived child process. Import and compilation take 0.7 s of CPU time. The result is
cached, so that later starts do not take this time from a busy server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from innoscope.common.cache import Cache, cache_key
from innoscope.common.data import folder
from innoscope.common.errors import BadFile, InnoscopeError, KernelUnable, NoRights
from innoscope.common.typed import decode_json, encode_json
from innoscope.probes.object_file import Compiled, CompileFailure, CompileRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Timeout for a compilation, in seconds. A compilation usually takes less than 1 s, but can take minutes on a
#: loaded or slow host.
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

    Raise BccMissing if bcc is not installed, NoRights without CAP_BPF and CAP_PERFMON (or root), which bcc
    needs to create the maps, or KernelUnable if the code does not compile (with the compiler's message) or if
    the compilation takes more than ``_TIMEOUT_S``.
    """
    key = _key(text, programs, maps)
    with _ONE_AT_A_TIME:
        cached = _CACHE.read(key)
        with contextlib.suppress(ValueError):  # written by another build of this version
            if cached is not None:
                return Compiled.unpack(cached)
        data = _compile(text, programs, maps)
        compiled = Compiled.unpack(data)
        _CACHE.write(key, data)
    return compiled


def discard(text: str, programs: Sequence[str], maps: Sequence[str]) -> bool:
    """Remove the cached code of ``programs``. Return whether a file was removed."""
    return _CACHE.remove(_key(text, programs, maps))


def _compile(text: str, programs: Sequence[str], maps: Sequence[str]) -> bytes:
    request = CompileRequest(text=text, programs=list(programs), maps=list(maps))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "innoscope.probes.bcc_worker"],
            input=encode_json(request),
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
    report, output = CompileFailure(error="the compiler printed no reason", kind="failed"), lines[-5:]
    with contextlib.suppress(BadFile, IndexError):
        report = decode_json(lines[-1], CompileFailure, "the compiler's report")
        output = lines[-6:-1]
    if report.kind == "missing":
        return BccMissing(
            f"cannot load bcc: {report.error}",
            remedy="apt install python3-bpfcc (python3-bcc on RPM systems)",
        )
    if report.kind == "rights":
        return NoRights(f"cannot load probes: permission denied: {report.error}", remedy="run it as root")
    words = "\n".join(output)
    return KernelUnable(f"cannot compile the probes: {report.error}\n{words}", remedy="innoscope doctor")


def _headers() -> Path:
    return folder("include") / "shim"


def _key(text: str, programs: Sequence[str], maps: Sequence[str]) -> str:
    """Return the cache key for the inputs, the headers and the kernel, whose features bcc detects."""
    shim = [path.read_text() for path in sorted(_headers().rglob("*.h"))]
    kernel = os.uname()
    return cache_key(text, *programs, *maps, *shim, kernel.release, kernel.machine)
