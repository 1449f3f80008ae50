"""From C text to loaded programs and maps, in a child that bcc and LLVM live and die in.

``import bcc`` costs 70 MB and a compile 120 MB, which no daemon should keep. The child hands over descriptors
(SCM_RIGHTS) and ends; programs and maps live as long as somebody has their descriptors open.
"""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from innoscope.data import folder
from innoscope.errors import InnoscopeError, KernelUnable, NoRights

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A compile takes 1 to 2 s of CPU time; a loaded host may need many times that.
_PATIENCE_S = 60.0
#: SCM_MAX_FD of unix(7).
_MOST_DESCRIPTORS = 253
_HEADER_BYTES = 64 * 1024
#: A host with many servers is there for them: compilers queue up.
_ONE_AT_A_TIME = threading.Lock()


class BccMissing(InnoscopeError):
    """bcc is not installed for this Python."""

    exit_code = KernelUnable.exit_code


@dataclass(slots=True)
class Loaded:
    """Descriptors by name; ours to close."""

    programs: dict[str, int]
    maps: dict[str, int]
    _open: bool = field(default=True, repr=False)

    def close(self) -> None:
        """Give up the programs and maps."""
        if self._open:
            self._open = False
            for descriptor in (*self.programs.values(), *self.maps.values()):
                os.close(descriptor)


def compile_and_load(text: str, programs: Sequence[str], maps: Sequence[str]) -> Loaded:
    """Compile, load these programs (as uprobe programs) and hand over descriptors, those of the maps too.

    Raises BccMissing, NoRights (CAP_BPF and CAP_PERFMON, or root) or KernelUnable with the compiler's or
    verifier's words.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _ONE_AT_A_TIME, ours, theirs:
        ours.settimeout(_PATIENCE_S)
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "innoscope.probes.compiler", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "BCC_KERNEL_SOURCE": str(folder("include") / "shim")},
        )
        theirs.close()
        order = {"text": text, "programs": list(programs), "maps": list(maps)}
        try:
            _, complaints = child.communicate(json.dumps(order).encode(), timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            child.kill()
            child.communicate()
            raise KernelUnable(
                f"compiling the probes took more than {_PATIENCE_S:.0f} s",
                remedy="try again when the host is less busy",
            ) from error
        return _receive(ours, complaints.decode(errors="replace"), programs, maps)


def _receive(ours: socket.socket, complaints: str, programs: Sequence[str], maps: Sequence[str]) -> Loaded:
    descriptors: list[int] = []
    header: dict[str, Any] | None = None
    while True:
        data, part, _, _ = socket.recv_fds(ours, _HEADER_BYTES, _MOST_DESCRIPTORS)
        if not data:
            break
        descriptors += part
        header = json.loads(data)
    if header is None or "error" in header:
        for descriptor in descriptors:
            os.close(descriptor)
        raise _explained(header or {}, complaints)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return Loaded(
        dict(zip(programs, descriptors[: len(programs)], strict=True)),
        dict(zip(maps, descriptors[len(programs) :], strict=True)),
    )


def _explained(header: dict[str, Any], complaints: str) -> InnoscopeError:
    kind, words = header.get("kind"), header.get("error", "the compiler ended without a word")
    last = "\n".join(complaints.strip().splitlines()[-5:])
    if kind == "missing":
        return BccMissing(
            f"bcc cannot be loaded: {words}", remedy="apt install python3-bpfcc (python3-bcc on RPM systems)"
        )
    if kind == "rights":
        return NoRights(f"no right to load probes: {words}", remedy="run it as root")
    return KernelUnable(
        f"the probes cannot be compiled or loaded: {words}\n{last}", remedy="innoscope doctor"
    )


def send(channel: socket.socket, header: dict[str, Any], descriptors: Sequence[int]) -> None:
    """The child's side: the descriptors in as many messages as it takes."""
    payload = json.dumps(header).encode()
    for first in range(0, max(1, len(descriptors)), _MOST_DESCRIPTORS):
        part = array.array("i", descriptors[first : first + _MOST_DESCRIPTORS])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)] if part else []
        channel.sendmsg([payload], ancillary)
