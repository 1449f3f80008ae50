"""Runs inside gdb: has one thread of the held process call a function, and need not be there at its end.

gdb's own ``call`` makes the function return to a breakpoint that only gdb understands, and puts others into
the program's code for as long as it runs: a gdb that dies in the middle takes the server with it. So the call
is made as the kernel delivers a signal: the thread's registers are laid down in a signal frame below its
stack, the function returns to ``rt_sigreturn``, and that takes them up again. All registers are set in one
system call: before it nothing has changed, after it the thread needs nobody.

Standard library only: gdb brings its own Python. The layout is that of x86-64
(arch/x86/include/uapi/asm/sigcontext.h).
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import time
from typing import Any

#: struct user_regs_struct, sys/user.h.
REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
_REGISTERS = struct.Struct("<27Q")
#: struct sigcontext, up to flags.
_CONTEXT = (
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx",
    "rsp", "rip", "eflags",
)  # fmt: skip
_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
#: System calls that may be begun again with the same arguments, as if nothing had been: poll, select, accept,
#: epoll_wait, accept4. Those that change the signal mask meanwhile (ppoll) are not among them.
PARKED = (7, 23, 43, 232, 288)
#: restart_syscall, which stands in the place of poll's number once poll was interrupted (by a debugger, by
#: SIGSTOP) and went on.
RESTARTED = 219
#: What the kernel has in rax when such a call was interrupted: EINTR, and its own ERESTART…
_INTERRUPTED = (-4, -512, -513, -514, -516)
_NO_SYSCALL = (1 << 64) - 1
_SYSCALL_BYTES = 2
_RED_ZONE = 128
#: UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS; with UC_FP_XSTATE for the whole of the vector registers.
_UC_FLAGS = 7
#: No such mode: the kernel leaves the alternate stack as it is.
_KEEP_ALTERNATE_STACK = 4
_FP_MAGIC1, _FP_MAGIC2 = 0x46505853, 0x46505845
_SOFTWARE = slice(464, 512)  # of the FXSAVE area, for the kernel's own marks
_FRAME = 312

_ATTACH_FAILED = "gdb did not attach"
_ANOTHER = "the server has ended, and another process has its id"
#: Of the fields of /proc/PID/stat behind the name: starttime.
_START_TIME = 19
_GETREGS, _SETREGS, _GETREGSET, _GETSIGMASK = 12, 13, 0x4204, 0x420A
_NT_X86_XSTATE = 0x202


class Unsafe(Exception):
    """The thread is not where a call may be made from. Nothing was changed."""


def build(
    registers: dict[str, int],
    vectors: bytes,
    mask: int,
    function: int,
    arguments: list[int | str],
    restorer: int,
    waits_in: int,
) -> tuple[int, bytes, dict[str, int]]:
    """``(address, bytes to be written there, registers to be set)`` for a call from a parked thread.

    ``vectors`` is what PTRACE_GETREGSET gives of NT_X86_XSTATE, ``restorer`` the address of code that calls
    rt_sigreturn, ``waits_in`` the number of the system call that it is to be parked in. Raises Unsafe.
    """
    before = _undone(registers, waits_in)
    top = registers["rsp"] - _RED_ZONE
    texts = [text.encode() + b"\0" for text in arguments if isinstance(text, str)]
    texts_at = top - sum(map(len, texts))
    vectors_at = (texts_at - len(vectors) - 4) & ~63
    frame_at = ((vectors_at - _FRAME) & ~15) - 8  # as at any function's first instruction
    values, place = [], texts_at
    for argument in arguments:
        if isinstance(argument, str):
            values.append(place)
            place += len(argument.encode()) + 1
        else:
            values.append(argument & _NO_SYSCALL)
    context = [before[name] for name in _CONTEXT]
    frame = struct.pack("<5Q", restorer, _UC_FLAGS, 0, 0, _KEEP_ALTERNATE_STACK) + struct.pack("<Q", 0)
    frame += struct.pack("<18Q", *context) + struct.pack("<4H", before["cs"], 0, 0, before["ss"])
    frame += struct.pack("<5Q", 0, 0, mask, 0, vectors_at) + bytes(64) + struct.pack("<Q", mask)
    content = frame.ljust(vectors_at - frame_at, b"\0") + _marked(vectors)
    content = content.ljust(texts_at - frame_at, b"\0") + b"".join(texts)
    after = {**before, "rip": function, "rsp": frame_at, "orig_rax": _NO_SYSCALL, "rax": 0}
    after.update(zip(_ARGUMENTS, values, strict=False))
    return frame_at, content, after


def _undone(registers: dict[str, int], waits_in: int) -> dict[str, int]:
    """The registers from before the system call that the thread is parked in, so that it is made again."""
    number, result = registers["orig_rax"], registers["rax"]
    result -= (result >> 63) << 64
    if number not in (waits_in, RESTARTED) or waits_in not in PARKED or result not in _INTERRUPTED:
        raise Unsafe(f"it is not parked: system call {number}, result {result}")
    return {**registers, "rax": waits_in, "rip": registers["rip"] - _SYSCALL_BYTES}


def _marked(vectors: bytes) -> bytes:
    """With the kernel's marks that say how much of it is to be restored (struct _fpx_sw_bytes)."""
    size = len(vectors)
    features = vectors[_SOFTWARE][:8]
    marks = struct.pack("<II", _FP_MAGIC1, size + 4) + features + struct.pack("<I", size)
    marked = vectors[: _SOFTWARE.start] + marks.ljust(48, b"\0") + vectors[_SOFTWARE.stop :]
    return marked + struct.pack("<I", _FP_MAGIC2)


class _Thread:
    """One thread that this process holds."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._ptrace.restype = ctypes.c_long

    def registers(self) -> dict[str, int]:
        raw = ctypes.create_string_buffer(_REGISTERS.size)
        self._ask(_GETREGS, None, raw)
        return dict(zip(REGISTERS, _REGISTERS.unpack(raw.raw), strict=True))

    def set_registers(self, registers: dict[str, int]) -> None:
        raw = _REGISTERS.pack(*(registers[name] for name in REGISTERS))
        self._ask(_SETREGS, None, ctypes.create_string_buffer(raw, len(raw)))

    def vectors(self) -> bytes:
        room = ctypes.create_string_buffer(1 << 16)
        span = (ctypes.c_size_t * 2)(ctypes.addressof(room), len(room))
        self._ask(_GETREGSET, _NT_X86_XSTATE, span)
        return room.raw[: span[1]]

    def mask(self) -> int:
        raw = ctypes.create_string_buffer(8)
        self._ask(_GETSIGMASK, 8, raw)
        return int.from_bytes(raw.raw, "little")

    def _ask(self, request: int, address: Any, data: Any) -> None:
        if self._ptrace(request, self._tid, address, ctypes.cast(data, ctypes.c_void_p)) == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _say(**what: Any) -> None:
    sys.stdout.write("\ninnoscope " + json.dumps(what) + "\n")
    sys.stdout.flush()


def _call(order: Any) -> None:
    """Lay down the frame and set the registers."""
    thread = _Thread(order["tid"])
    address, content, registers = build(
        thread.registers(), thread.vectors(), thread.mask(), order["function"], order["arguments"],
        order["restorer"], order["waits_in"],
    )  # fmt: skip
    with open(f"/proc/{order['pid']}/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        memory.seek(address)
        memory.write(content)
        memory.seek(address)
        if memory.read(len(content)) != content:
            raise Unsafe("its stack cannot be written")
    _say(event="calling")
    thread.set_registers(registers)
    _say(event="called")


def _start_time(pid: int) -> int:
    with open(f"/proc/{pid}/stat", errors="replace") as stat:  # noqa: PTH123
        return int(stat.read().rpartition(")")[2].split()[_START_TIME])


def main() -> None:
    """Attach, have the call made, let go."""
    import gdb  # type: ignore[import-untyped]  # here, since only gdb has it and tests import this module

    order = json.loads(os.environ["INNOSCOPE_CALL"])
    began = time.monotonic()
    try:
        gdb.execute(f"attach {order['pid']}", to_string=True)
    except gdb.error as error:
        _say(event="refused", reason=f"{_ATTACH_FAILED}: {error}")
        return
    try:
        if _start_time(order["pid"]) != order["start_time"]:  # while it is held, its id cannot be given away
            raise Unsafe(_ANOTHER)
        _call(order)
    except (Unsafe, OSError) as error:
        _say(event="refused", reason=str(error))
    gdb.execute("detach", to_string=True)
    _say(event="detached", held_s=time.monotonic() - began)


if __name__ == "__main__":
    main()
