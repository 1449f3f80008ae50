"""The benchmark ``methods`` shows how often stacks agree, and how often inferred stacks are wrong."""

from __future__ import annotations

from bench.methods import Compared, comparison
from snapshot_methods import STOPPING_NOTHING


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_agreement_and_errors_are_percentages_of_the_compared_stacks() -> None:
    best, nosleep, procfs = (Compared([3.0, 5.0], [2.0, 2.0]) for _ in STOPPING_NOTHING)
    best.trust.update(exact=2000)
    best.agrees.update(exact=2000)
    nosleep.trust.update(exact=2000)
    nosleep.agrees.update(exact=1999)
    nosleep.differs.update(exact=1)
    procfs.trust.update(exact=1500, inferred=500)
    procfs.agrees.update(exact=1500, inferred=498)
    procfs.differs.update(inferred=2)
    compared = dict(zip(STOPPING_NOTHING, map(vars, (best, nosleep, procfs)), strict=True))

    header, _, *rest = map(cells, comparison({"mysql-5.6.24": {"compared": compared}}).splitlines())
    rows = {row[1]: dict(zip(header, row, strict=True)) for row in rest}
    assert [rows[method]["agree"] for method in STOPPING_NOTHING] == ["100.000 %", "99.950 %", "100.000 %"]
    assert [rows[method]["wrong"] for method in STOPPING_NOTHING] == ["–", "–", "0.400 %"]
    assert rows["procfs"]["inferred compared"] == "500"
    assert rows["procfs"]["exact compared"] == "1,500"
