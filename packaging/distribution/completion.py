"""Write click's shell completion scripts, which run ``innoscope`` to get the candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import BashComplete, FishComplete, ZshComplete

from innoscope.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

#: Directories of the completion scripts. The zsh directory is Fedora's; the .deb moves that file to Debian's
#: directory.
_PLACES = {
    BashComplete: "bash-completion/completions/innoscope",
    ZshComplete: "zsh/site-functions/_innoscope",
    FishComplete: "fish/vendor_completions.d/innoscope.fish",
}


def write(share: Path) -> None:
    """Write the scripts for the three shells below ``share`` (/usr/share)."""
    for kind, place in _PLACES.items():
        path = share / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(kind(cli, {}, "innoscope", "_INNOSCOPE_COMPLETE").source())
