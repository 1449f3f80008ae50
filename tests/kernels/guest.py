"""Boot a kernel in a virtual machine, run job_main.py in it, and return the result."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels import image, results
from servers import Keeper, cache, ensure_packages

if TYPE_CHECKING:
    from kernels.kernels import Kernel, Variant

_MEMORY = "3G"
_CPUS = 2
_RESULT_BYTES = 8 << 20
#: Maximum characters of console output to keep if a machine fails.
_CONSOLE = 8_000


class GuestError(RuntimeError):
    """The error for a machine that returned no result."""


def run(kernel: Kernel, variant: Variant, timeout_s: float) -> dict[str, Any]:
    """Run job_main.py in a machine, and return its result, which is incomplete after a timeout.

    Raise GuestError if there is no result. Only one machine runs at a time on this host.
    """
    machine = kernel.machine
    ensure_packages((machine.package,))
    boot, root = image.boot_files(kernel), image.root_disk(machine)
    with cache.locked("virtual-machine"), tempfile.TemporaryDirectory(prefix="innoscope-kernel-") as name:
        folder = Path(name)
        result = folder / "result"
        with result.open("wb") as file:
            file.truncate(_RESULT_BYTES)
        disks = (
            f"file={root},format=raw,snapshot=on",
            f"file={image.tree_disk(folder, machine)},format=raw,snapshot=on",
            f"file={result},format=raw",
        )
        options = f"console={machine.console} panic=-1 loglevel=5 mitigations=off"
        options += f" tree={image.TREE} variant={variant.name} {variant.options}"
        command = [
            *machine.command, "-accel", "tcg,thread=multi", "-smp", str(_CPUS),
            "-m", _MEMORY, "-nographic", "-no-reboot", "-nic", "none",
            "-kernel", str(boot.image), "-initrd", str(boot.initrd),
            *(word for disk in disks for word in ("-drive", f"{disk},if=virtio")),
            "-append", options,
        ]  # fmt: skip
        console = _console(command, timeout_s, folder)
        found = results.read_from(result)
        if found is None:
            raise GuestError(
                f"{kernel.name} {variant.name}: no result; the console's end:\n{console[-_CONSOLE:]}"
            )
        if not found.get("complete"):
            found["console"] = console[-_CONSOLE:]
        return found


def _console(command: list[str], timeout_s: float, folder: Path) -> str:
    """Run the machine until it powers off or the timeout expires; return its console output."""
    path = folder / "console"
    with Keeper() as keeper, path.open("wb") as log:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        keeper.watch(machine.pid)
        with suppress(subprocess.TimeoutExpired):
            machine.wait(timeout_s)
        keeper.end(machine)
    return path.read_text(errors="replace")
