"""Run one Python target under libFuzzer: `python -m fuzz.one TARGET [libFuzzer's arguments]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["innoscope"]):
    from fuzz import targets


def main() -> None:
    """Run the fuzzer until libFuzzer reaches one of its limits and exits the process."""
    target = targets.PYTHON[sys.argv[1]]

    def run(data: bytes) -> None:
        targets.within_limits(target.run, data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
