"""CPU profiles use perf events only if BPF is not available."""

from __future__ import annotations

import os
from typing import Any

import pytest

from innoscope import _native
from innoscope.common.errors import KernelUnable
from innoscope.sampling.profile import oncpu
from unit.snapshots import target

TARGET = target(pid=os.getpid())


class Events:
    """A stand-in for ``_native.PerfOnCpu``, with one event per thread and without kernel time."""

    per_cpu = in_kernel = False

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def _raising(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oncpu, "require_host_pids", lambda _action: None)
    monkeypatch.setattr(_native, "PerfOnCpu", Events)


def _open() -> tuple[Any, tuple[str, ...]]:
    return oncpu.open_program(TARGET, 99, kernel=False)


def test_bpf_is_used_if_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "OnCpu", lambda *_, **__: "program")
    assert _open() == ("program", ())


@pytest.mark.parametrize("kind", ["rights", "bpf"])
def test_perf_events_are_used_without_bpf(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(_native, "OnCpu", _raising(_native.NativeError(kind, "denied")))
    program, notes = _open()
    assert isinstance(program, Events)
    assert notes[0] == "sampled by perf events, not by BPF: denied"
    assert "for less than 10 ms on a CPU" in notes[1]
    assert "time in the kernel was not sampled" in notes[2]


def test_perf_events_are_used_in_a_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oncpu, "require_host_pids", _raising(KernelUnable("own process ids")))
    program, notes = _open()
    assert isinstance(program, Events)
    assert "own process ids" in notes[0]


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "OnCpu", _raising(_native.NativeError("gone", "ended")))
    with pytest.raises(_native.NativeError, match="ended"):
        _open()


def test_the_error_names_both_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "OnCpu", _raising(_native.NativeError("bpf", "no BTF")))
    monkeypatch.setattr(_native, "PerfOnCpu", _raising(_native.NativeError("rights", "no events")))
    with pytest.raises(_native.NativeError) as caught:
        _open()
    assert caught.value.args == ("rights", "no BTF; without BPF: no events")
