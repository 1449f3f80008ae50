"""py-spy may read the agent that started it, for as long as it has to, and nobody else may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from innoscope.agent import privileges
from innoscope.errors import NoRights

MAIN = Path(__file__).with_name("readable_main.py")
#: A user of nobody else's.
UID = 54_321
NOBODY = 65_534


def tried(uid: int) -> str:
    done = subprocess.run([sys.executable, str(MAIN), str(uid)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_only_meanwhile() -> None:
    assert tried(UID) == "False True False"


def test_not_where_strangers_share_the_user() -> None:
    """Yama keeps them off where it is on."""
    alone = privileges._yama() == 1

    assert tried(NOBODY) == "False True False" if alone else "agent runs as nobody" in tried(NOBODY)


@pytest.mark.parametrize(
    ("scope", "words"), [("2", "sudo innoscope self-profile"), ("3", "until the next boot")]
)
def test_where_yama_forbids_it_it_is_said(
    scope: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ptrace_scope"
    file.write_text(f"{scope}\n")
    monkeypatch.setattr(privileges, "_PTRACE_SCOPE", file)

    with pytest.raises(NoRights, match="ptrace_scope") as refused, privileges.readable_by_children():
        pass
    assert words in (refused.value.remedy or "")
