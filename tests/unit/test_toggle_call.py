"""A call as it is laid down on a thread's stack, what the catalog may call, and who is in the allocator."""

from __future__ import annotations

import struct

import pytest

from innoscope.stacks.model import Frame, Thread, Trust
from innoscope.toggles import in_gdb
from innoscope.toggles.allocator import parse
from innoscope.toggles.gdbway import busy
from innoscope.toggles.model import Refused

STACK = 0x7FFD_0000_1238
POLL, EINTR, RESTART = 7, -4, -516
#: An XSAVE area with x87, SSE and AVX (mask 7 in the kernel's bytes of it).
VECTORS = bytes(range(256)) + bytes(208) + struct.pack("<Q", 7) + bytes(40) + b"\x55" * 320


def registers(number: int = POLL, result: int = RESTART) -> dict[str, int]:
    found = {name: 0x1000 + index for index, name in enumerate(in_gdb.REGISTERS)}
    return {
        **found, "rsp": STACK, "rip": 0x7F00_0000_0010, "orig_rax": number, "rax": result % (1 << 64),
        "cs": 0x33, "ss": 0x2B,
    }  # fmt: skip


def test_a_call_is_laid_down_like_a_signal() -> None:
    before = registers()
    at, content, after = in_gdb.build(before, VECTORS, 0xABC, 0x5000, [0, "arena.4096.purge"], 0x6000, POLL)

    assert after["rip"] == 0x5000
    assert after["orig_rax"] == (1 << 64) - 1, "the kernel would begin the system call again, in the call"
    assert after["rsp"] == at
    assert at % 16 == 8, "a function expects it so"
    assert at + len(content) <= STACK - 128, "what the thread has below its stack pointer is its own"
    assert struct.unpack_from("<Q", content)[0] == 0x6000, "where the function returns to"
    assert after["rdi"] == 0
    text = after["rsi"] - at
    assert content[text:].startswith(b"arena.4096.purge\0")
    untouched = set(in_gdb.REGISTERS) - {"rip", "orig_rax", "rsp", "rdi", "rsi", "rax"}
    assert all(after[name] == before[name] for name in untouched)


def test_the_way_back_makes_the_system_call_again() -> None:
    before = registers()
    at, content, _ = in_gdb.build(before, VECTORS, 0xABC, 0x5000, [], 0x6000, POLL)
    context = struct.unpack_from("<18Q", content, 8 + 40)  # after the return address and what precedes it
    r8, rax, rsp, rip = context[0], context[13], context[15], context[16]

    assert r8 == before["r8"]
    assert rax == POLL
    assert rip == before["rip"] - 2, "the syscall instruction"
    assert rsp == STACK
    assert struct.unpack_from("<4H", content, 48 + 144) == (0x33, 0, 0, 0x2B)
    assert struct.unpack_from("<Q", content, 48 + 256)[0] == 0xABC, "the signal mask"
    [vectors_at] = struct.unpack_from("<Q", content, 48 + 144 + 8 + 32)
    assert vectors_at % 64 == 0
    vectors = content[vectors_at - at :]
    assert vectors[:464] == VECTORS[:464]
    assert struct.unpack_from("<IIQI", vectors, 464) == (0x46505853, len(VECTORS) + 4, 7, len(VECTORS))
    assert vectors[512 : len(VECTORS)] == VECTORS[512:]
    assert struct.unpack_from("<I", vectors, len(VECTORS))[0] == 0x46505845


@pytest.mark.parametrize("number", [POLL, 23, 43, 232, 288])
@pytest.mark.parametrize("result", [EINTR, -512, -514, RESTART])
def test_threads_that_wait_for_clients(number: int, result: int) -> None:
    in_gdb.build(registers(number, result), VECTORS, 0, 0x5000, [], 0x6000, number)


def test_a_poll_that_was_interrupted_before_is_a_poll() -> None:
    _, content, _ = in_gdb.build(registers(219, RESTART), VECTORS, 0, 0x5000, [], 0x6000, POLL)
    assert struct.unpack_from("<18Q", content, 48)[13] == POLL


@pytest.mark.parametrize(
    ("number", "result"),
    [(POLL, 1), (POLL, 0), (23, -514), (202, -512), (0, -512), (271, -514), ((1 << 64) - 1, 0), (POLL, -22)],
)
def test_threads_that_do_something_else(number: int, result: int) -> None:
    with pytest.raises(in_gdb.Unsafe, match="not parked"):
        in_gdb.build(registers(number, result), VECTORS, 0, 0x5000, [], 0x6000, POLL)


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        ("malloc_trim(0)", ("malloc_trim", (0,))),
        ("(int)malloc_trim((unsigned long)0)", ("malloc_trim", (0,))),
        ("(void)MallocExtension_ReleaseFreeMemory()", ("MallocExtension_ReleaseFreeMemory", ())),
        (
            '(int)mallctl("arena.4096.purge", (long)0, NULL, 0x10, -1)',
            ("mallctl", ("arena.4096.purge", 0, 0, 16, -1)),
        ),
    ],
)
def test_calls_of_the_catalog(expression: str, meaning: object) -> None:
    assert parse(expression) == meaning


@pytest.mark.parametrize(
    "expression",
    [
        "", "malloc_trim", "malloc_trim(", "malloc_trim(x)", "system(\"a\\\"b\")", "f(1 2)", "f(1,,2)",
        "a(b(0))", "f(1,2,3,4,5,6,7)", "x = 1", "f(0); g(0)", "f(,)",
    ],
)  # fmt: skip
def test_anything_else_is_no_call(expression: str) -> None:
    with pytest.raises(Refused, match="not a call"):
        parse(expression)


@pytest.mark.parametrize(
    ("function", "inside"),
    [
        ("malloc", True), ("_int_free", True), ("__libc_malloc", True), ("operator new(unsigned long)", True),
        ("tcmalloc::CentralFreeList::FetchFromOneSpans", True), ("je_arena_purge", True), ("cfree", True),
        ("poll", False), ("my_malloc", False), ("malloc_trim", True), ("freeaddrinfo", False),
        ("mallocator", False), ("free_list_get", False),
    ],
)  # fmt: skip
def test_who_is_inside_the_allocator(function: str, inside: bool) -> None:
    frames = (Frame("__lll_lock_wait", "libc.so.6", 1), Frame(function, "x", 2), Frame(None, "y", 3))
    thread = Thread(7, 7, "mysqld", "S", Trust.EXACT, "other", frames)
    assert busy([thread]) == ([7] if inside else [])
