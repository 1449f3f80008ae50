"""Test that waits.yaml lists no server function as a library function, which text output would omit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope._native import CodeFile, plain_name
from innoscope.probes.trace.suggestions import demangled
from innoscope.sampling.classify import default_classifier
from servers import NAMES, Server

if TYPE_CHECKING:
    from collections.abc import Callable

#: Functions of libraries that are linked into some servers, and an empty function of mysys.
LINKED_IN = {
    "io_submit", "io_getevents", "io_getevents_0_4", "__libc_csu_init", "__libc_csu_fini", "pthread_dummy",
    "std::__atomic_futex_unsigned_base::_M_futex_notify_all",
    "std::__atomic_futex_unsigned_base::_M_futex_wait_until",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_function_of_a_server_has_the_name_of_a_library_function(
    server: Callable[[str], Server], name: str
) -> None:
    functions = {plain_name(shown) for _, shown in demangled(CodeFile(server(name).pid))}
    known = default_classifier().library_functions
    assert functions
    assert {function for function in functions if known.matches(function)} <= LINKED_IN
