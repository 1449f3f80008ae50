"""Test that the commands, the agent and the probes work on other kernels, and that no server is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernels import guest
from kernels.kernels import KERNELS, RUNS, VARIANTS
from scale import long

if TYPE_CHECKING:
    from kernels.results import Result

_TIMEOUT_S = 5_400
#: Variants in which BPF does not work.
_WITHOUT_BPF = ("seccomp", "lockdown", "no-btf")


@long("the features are tested on the host's kernel, with BPF and without it")
@pytest.mark.timeout(_TIMEOUT_S + 300)
@pytest.mark.parametrize(("kernel", "variant"), RUNS)
def test_kernel(kernel: str, variant: str) -> None:
    result = guest.run(KERNELS[kernel], VARIANTS[variant], _TIMEOUT_S)

    assert result.get("complete"), result
    for server in result["servers"].values():
        _check(server, variant)


def _check(server: Result, variant: str) -> None:
    found = server["stacks auto"]
    expected = ("procfs",) if variant in _WITHOUT_BPF else ("bpf", "bpf-nosleep")
    assert found["method"] in expected
    assert found["complete"] >= 0.99 * found["all"], found
    assert found["right"] >= 0.95 * found["affected"], found
    assert server["diagnose"]["findings"][0] == "row_lock_convoy"
    assert server["diagnose"]["snapshots"] >= 1
    assert server["agent"]["thread samples"]
    assert server["kills"]["exit"] == 0
    assert server["toggle"]["value"] == "321"
    assert server["toggle"]["undo"]["exit"] == 0
    has_no_probes = server["doctor"]["host"]["uprobes"][1].startswith("no probes: ")
    assert has_no_probes == (variant == "seccomp")
    if variant != "seccomp":  # this variant also denies perf events
        assert server["profile"]["exit"] == 0
        assert server["profile --off-cpu"]["exit"] == 0
        assert server["probes"]["counting"] > 0
