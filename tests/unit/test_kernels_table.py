"""docs/kernels.md matches the recorded results of the test runs on each kernel."""

from __future__ import annotations

from generated_page import with_generated
from kernels import results, table
from kernels.kernels import DERIVED, KERNELS, RUNS, VARIANTS


def test_page_is_up_to_date() -> None:
    page = table.PAGE.read_text()

    assert page == with_generated(page, "\n".join(table.tables())), (
        "run: PYTHONPATH=tests python -m kernels.table"
    )


def test_each_run_names_a_kernel_and_a_variant() -> None:
    runs = [*RUNS, *(one.run for one in DERIVED)]

    assert {kernel for kernel, _ in runs} <= set(KERNELS)
    assert {variant for _, variant in runs} <= set(VARIANTS)
    assert {one.run for one in DERIVED} <= set(RUNS)


def test_each_result_belongs_to_a_run() -> None:
    stored = set(results.FOLDER.glob("*.json"))

    assert stored <= {results.path(kernel, variant) for kernel, variant in RUNS}
