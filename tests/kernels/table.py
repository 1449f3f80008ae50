"""``python -m kernels.table``: update docs/kernels.md from the results in ``results/``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generated_page import with_generated
from kernels import results
from kernels.kernels import DERIVED, MACHINES, RUNS, VARIANTS
from snapshot_methods import STOPPING_NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kernels.results import Result

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
_MISSING = "not run"


def main() -> int:
    PAGE.write_text(with_generated(PAGE.read_text(), "\n".join(tables())))
    return 0


def tables() -> Iterator[str]:
    """Yield the lines between the page's markers."""
    found = [(kernel, variant, results.load(kernel, variant)) for kernel, variant in RUNS]
    run = [(variant, result) for _, variant, result in found if result is not None]
    yield "## What works"
    yield ""
    yield from _features(run)
    yield ""
    yield "Each variant:"
    yield ""
    for variant in VARIANTS.values():
        yield f"- {variant.name}: {variant.what}"
    missing = [_run_name(kernel, variant) for kernel, variant, result in found if result is None]
    if missing:
        yield ""
        yield f"Not run yet: {', '.join(missing)}."
    early = [
        _run_name(kernel, variant) for kernel, variant, result in found if result and "complete" not in result
    ]
    if early:
        yield ""
        yield f"Ended early, so servers and columns are missing: {', '.join(early)}."
    yield ""
    yield "## Stacks"
    yield ""
    yield from _stacks(run)
    yield ""
    yield "## Derived"
    yield ""
    yield "| system | kernel | expected to work like | because |"
    yield "|---|---|---|---|"
    for one in DERIVED:
        run_yet = "" if results.load(*one.run) else f", {_MISSING}"
        yield f"| {one.system} | {one.kernel} | {_run_name(*one.run)}{run_yet} | {one.why} |"


def _run_name(kernel: str, variant: str) -> str:
    """Return the name of a run, such as ``6.12 (default)`` or, for any kernel 7, ``7.x (default)``."""
    return f"{kernel}x ({variant})" if kernel.endswith(".") else f"{kernel} ({variant})"


def _features(run: Iterable[tuple[str, Result]]) -> Iterator[str]:
    columns = ("kernel", "variant", "server", "doctor", "method", *_CELLS, "recorded")
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for variant, result in run:
        recorded = result["recorded"]
        for name, server in _servers(result):
            cells = [_release(result), variant, name, _doctor(server), _method(server)]
            cells += [cell(server[step]) if step in server else _MISSING for step, cell in _CELLS.items()]
            cells.append(f"{recorded['date']}, {recorded['commit']}")
            yield f"| {' | '.join(cells)} |"


def _servers(result: Result) -> Iterator[tuple[str, Result]]:
    """Yield the name and the result of each server of a run, in the order in which they run."""
    names = dict.fromkeys(name for machine in MACHINES.values() for name in machine.servers)
    yield from ((name, result["servers"][name]) for name in names if name in result["servers"])


def _release(result: Result) -> str:
    return str(result["kernel"]).removesuffix("-cloud-amd64").replace("-cloud-", " ")


def _method(server: Result) -> str:
    found = server.get("stacks auto")
    if found is None:
        return _MISSING
    return f"`{found['method']}`" if "method" in found else "none"


def _doctor(server: Result) -> str:
    found = server.get("doctor", {})
    return str(found.get("verdict", _MISSING)).replace("_", " ")


def _failed(found: Any) -> str | None:
    return "failed" if isinstance(found, dict) and "failed" in found else None


def _diagnose(found: Result) -> str:
    if failed := _failed(found):
        return failed
    first = found.get("findings", [None])[:1]
    return f"{first[0] if first else 'nothing'}, {found.get('snapshots', 0)} snapshots"


def _agent(found: Result) -> str:
    return _failed(found) or ("stacks" if found["thread samples"] else "no stacks")


def _exit(found: Result) -> str:
    return _failed(found) or ("yes" if found["exit"] == 0 else f"refused: exit {found['exit']}")


def _probes(found: Result) -> str:
    if found.get("exit") == 0:
        return f"{found['attached']} attached, {found['counting']} counted"
    return _exit(found)


def _kills(found: Result) -> str:
    return _failed(found) or f"{found['kills']}, unharmed"


def _toggle(found: Result) -> str:
    done = found.get("value") == "321" and found["undo"]["exit"] == 0
    return _failed(found) or ("set, undone" if done else f"refused: exit {found['set']['exit']}")


#: For each step, the function that formats its result as a cell of the first table.
_CELLS = {
    "diagnose": _diagnose,
    "agent": _agent,
    "profile": _exit,
    "profile --off-cpu": _exit,
    "probes": _probes,
    "toggle": _toggle,
    "kills": _kills,
}


def _stacks(run: Iterable[tuple[str, Result]]) -> Iterator[str]:
    yield "| kernel | variant | server | method | complete | trust | wait class correct |"
    yield "|---|---|---|---|---|---|---|"
    for variant, result in run:
        for name, server in _servers(result):
            for method in STOPPING_NOTHING:
                found = server.get(f"stacks {method}")
                if found is None:
                    continue
                cells = [_release(result), variant, name, f"`{method}`"]
                if "all" not in found:
                    cells += ["refused" if "refused" in found else "failed", "", ""]
                else:
                    cells += [_share(found["complete"], found["all"]), _trust(found),
                              _share(found["right"], found["affected"])]  # fmt: skip
                yield f"| {' | '.join(cells)} |"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%} of {whole}" if whole else "none"


def _trust(found: Result) -> str:
    levels = {**found["at rest"]}
    for level, count in found["running"].items():
        levels[level] = levels.get(level, 0) + count
    total = sum(levels.values())
    return ", ".join(f"{level} {count / total:.1%}" for level, count in sorted(levels.items()))


if __name__ == "__main__":
    sys.exit(main())
