"""Run one Python target under libFuzzer: `python -m fuzz.one TARGET [libFuzzer's arguments]`."""

from __future__ import annotations

import sys
import time

import atheris

with atheris.instrument_imports(include=["innoscope"]):
    from fuzz import targets


def main() -> None:
    """Run the fuzzer until libFuzzer reaches one of its limits and exits the process."""
    target = targets.PYTHON[sys.argv[1]]

    def run(data: bytes) -> None:
        targets.within_limits(target.run, data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], run)
    print(f"stat::start_up_cpu_ms: {1000 * time.process_time():.0f}", file=sys.stderr, flush=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
