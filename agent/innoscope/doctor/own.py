"""What the agent kept of itself: the profile that it took when it passed its CPU budget."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

from innoscope.doctor.model import Check, ok, warn
from innoscope.errors import BadFile, InnoscopeError
from innoscope.selfprofile import kept, pyspy

if TYPE_CHECKING:
    from innoscope.doctor.host import Host
    from innoscope.selfprofile.kept import Kept

_NAME: Final = "agent's CPU"
_LOOK: Final = "open it in https://www.speedscope.app; how it is now: sudo innoscope self-profile"


def own_profile(host: Host) -> Check:
    """Whether the agent of this host ever had to profile itself, and whether it could."""
    file = host.root / kept.path(host.environment).relative_to("/")
    try:
        found = kept.read(file)
    except PermissionError:
        return ok(_NAME, f"no right to read {file}")
    except BadFile as error:
        return warn(_NAME, error.what, error.remedy)
    if found is not None:
        return warn(_NAME, _told(found, str(file)), _LOOK)
    try:
        pyspy.find()
    except InnoscopeError as error:
        return warn(_NAME, f"{error.what}: the agent could not profile itself", error.remedy)
    return ok(_NAME, "no agent has passed its budget")


def _told(found: Kept, file: str) -> str:
    why = found.why
    at = datetime.datetime.fromtimestamp(why.taken_at).astimezone().isoformat(" ", "seconds")
    top = ", ".join(f"{name} {share:.0%}" for name, share in found.top[:3]) or "none: it was over by then"
    return (
        f"the agent (pid {why.pid}) passed its CPU budget at {at}: {why.used:.1%} of a core over "
        f"{why.window_s:.0f} s, {why.budget:.1%} are allowed; see {file}, top functions: {top}"
    )
