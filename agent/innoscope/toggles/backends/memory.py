"""Write a number into a running server's memory, without stopping the server or calling its functions.

The kernel copies an aligned number of up to 8 bytes in one step, and the server reads such variables with
plain loads, so the server sees either the old or the new value.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError, NoRights
from innoscope.memory.regions import Image
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone, translating
from innoscope.toggles import locate_setting as resolving
from innoscope.toggles import number_bytes
from innoscope.toggles.model import ChangeFailed, ChangeRefused, ChangeStep, same

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from innoscope.target.model import Target
    from innoscope.toggles.locate_setting import SettingLocation
    from innoscope.toggles.model import Backend, Raw, ToggledVariable

_YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_YAMA_NEVER: Final = "3"


class MemoryWriter:
    """Writes to one server through /proc/PID/mem. ``gdb`` is the gdb executable.

    All methods may raise NoRights, or NoSuchProcess if the server has exited, even if its pid was reused.
    """

    kind = "memory"

    def __init__(self, target: Target, *, gdb: str = "gdb") -> None:
        self._target = target
        self._gdb = gdb
        self._known: dict[ToggledVariable, SettingLocation | InnoscopeError] = {}

    def __enter__(self) -> MemoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the located settings."""
        self._known = {}

    def prepare(self, backend: Backend, new: Sequence[Raw | None]) -> tuple[ChangeStep, ...]:
        """Return the steps with the current values in memory.

        Raise NotOnThisServer if this build lacks one of the variables, and ChangeRefused if a variable or its
        value does not match the catalog.
        """
        self.learn([backend])
        settings = [assignment.setting for assignment in backend.assignments]
        return tuple(self._step(setting, raw) for setting, raw in zip(settings, new, strict=True))

    def learn(self, backends: Sequence[Backend]) -> None:
        """Locate the settings of all these backends at once.

        If a setting cannot be located, ``prepare`` raises the error.
        """
        settings = dict.fromkeys(one.setting for backend in backends for one in backend.assignments)
        unknown = [setting for setting in settings if setting not in self._known]
        if unknown:
            self._known |= resolving.find_all(self._target, unknown, gdb=self._gdb)

    def read(self, step: ChangeStep) -> Raw:
        """Return the setting's current value in memory."""
        address, size, kind = _place(step)
        with translating(self._target.pid):
            raw = _native.read_memory(self._target.pid, address, size)
        self._must_be_the_same()
        return number_bytes.decode(raw, kind)

    def write(self, step: ChangeStep) -> None:
        """Write ``step.new`` if the value is still ``step.old``, and read it back.

        Raise ChangeRefused if nothing was written, and ChangeFailed if the written value cannot be verified.
        """
        address, size, kind = _place(step)
        new = number_bytes.encode(step.setting, step.new, kind, size)
        memory = self._open()
        try:
            self._check(step, memory)
            written = self._put(step, memory, new)
            found = os.pread(memory, size, address) if written else b""
        except OSError as error:
            raise ChangeFailed(
                f"{step.setting} was set to {step.new}, but cannot be read back: {error.strerror}",
                remedy="check it: innoscope toggle list",
            ) from error
        finally:
            os.close(memory)
        if not found:
            raise gone(self._target.pid)
        if found != new:
            raise ChangeFailed(
                f"{step.setting} was set to {step.new}, but did not keep the value: it is "
                f"{number_bytes.decode(found, kind)} now",
                remedy="the server itself writes this variable: use the SQL backend",
            )

    def _step(self, setting: ToggledVariable, raw: Raw | None) -> ChangeStep:
        place = self._known[setting]
        if isinstance(place, InnoscopeError):
            raise place
        step = ChangeStep(setting.name, None, raw, place.address, place.size, place.type, place.origin)
        if raw is not None:
            number_bytes.encode(setting.name, raw, place.type, place.size)
        old = self.read(step)
        low, high = setting.plausible or (float("-inf"), float("inf"))
        if not low <= float(old) <= high:
            raise ChangeRefused(
                f"{setting.name} is {old} in memory, and should be from {low:g} to {high:g}: "
                "the catalog describes another variable",
                remedy="nothing was written: use the SQL backend, or report this build",
            )
        return ChangeStep(setting.name, old, raw, place.address, place.size, place.type, place.origin)

    def _open(self) -> int:
        """Open /proc/PID/mem. The descriptor stays bound to this address space even if the pid is reused."""
        path = f"/proc/{self._target.pid}/mem"
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                raise self._no_rights(error) from error
            raise gone(self._target.pid) from error

    def _check(self, step: ChangeStep, memory: int) -> None:
        """Check that process, build, location and value have not changed. ``memory`` is the open file."""
        self._must_be_the_same()
        address, size, kind = _place(step)
        with translating(self._target.pid):
            build_id = _native.elf_info(f"/proc/{self._target.pid}/exe").build_id
        if build_id != self._target.build_id:
            raise ChangeRefused(
                f"process {self._target.pid} runs a different build from when the change was planned",
                remedy="plan it again",
            )
        place = resolving.SettingLocation(address, size, kind, step.origin or "")
        resolving.check_place(step.setting, place, Image(self._target.pid))
        try:
            raw = os.pread(memory, size, address)
        except OSError as error:
            raise self._refused(step, error) from error
        if not raw:
            raise gone(self._target.pid)
        now = number_bytes.decode(raw, kind)
        if not same(now, step.old):
            raise ChangeRefused(
                f"cannot change {step.setting}: it is {now} now, not {step.old} as planned",
                remedy="nothing was written: plan it again",
            )

    def _put(self, step: ChangeStep, memory: int, new: bytes) -> bool:
        """Write the bytes with one system call. Return False if the server has exited."""
        try:
            return os.pwrite(memory, new, _place(step)[0]) == len(new)
        except OSError as error:
            raise self._refused(step, error) from error

    def _must_be_the_same(self) -> None:
        if not still_same(self._target):
            raise gone(self._target.pid)

    def _no_rights(self, error: OSError) -> NoRights:
        what = f"cannot write to the memory of process {self._target.pid}: {error.strerror}"
        try:
            scope = _YAMA.read_text().strip()
        except OSError:
            scope = ""
        if scope == _YAMA_NEVER:
            remedy = "kernel.yama.ptrace_scope is 3, which only a reboot of the host can change: use SQL"
            return NoRights(what, remedy=remedy)
        return NoRights(what, remedy="run it as root; in a container, CAP_SYS_PTRACE is required")

    def _refused(self, step: ChangeStep, error: OSError) -> ChangeRefused:
        return ChangeRefused(
            f"{step.setting} at {step.address:#x} of process {self._target.pid} cannot be written: "
            f"{error.strerror}",
            remedy="nothing was written; to see what this host forbids: innoscope doctor",
        )


def _place(step: ChangeStep) -> tuple[int, int, str]:
    if step.address is None or step.size is None or step.type is None:
        raise ChangeRefused(
            f"cannot change {step.setting} in memory: its address is unknown", remedy="plan the change again"
        )
    return step.address, step.size, step.type
