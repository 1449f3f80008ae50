"""On a full disk the journal refuses a change before it is made, and stays readable."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import CannotWrite
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import Refused
from unit.toggling import entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_refuses_the_intent(full_disk: Path) -> None:
    journal = Journal(full_disk)
    journal.intend(entry("one"))
    _fill(full_disk)
    with pytest.raises(Refused, match="No space left") as caught:
        _intend_many(journal)
    assert "df" in str(caught.value.remedy)
    kept = [one.id for one in journal.entries()]
    assert kept == ["one", *(f"n{number}" for number in range(len(kept) - 1))]
    with pytest.raises(CannotWrite):
        journal.conclude("one", "done")
    (full_disk / "filler").unlink()
    journal.conclude("one", "done")
    assert journal.entries()[0].outcome == "done"


def _intend_many(journal: Journal) -> None:
    for number in range(20):  # the page that the file ends in has room for some
        journal.intend(entry(f"n{number}"))


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError:
            return


def test_little_room_is_a_problem_before_anything_is_written(full_disk: Path) -> None:
    problem = Journal(full_disk).problem()

    assert problem is not None
    assert "KiB left" in problem[0]
