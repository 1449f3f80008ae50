"""``python -m kernels [KERNEL [VARIANT]]``: run the matrix or a part of it, and update docs/kernels.md."""

from __future__ import annotations

import sys
import time

from kernels import guest, results, table
from kernels.kernels import KERNELS, RUNS, VARIANTS

_TIMEOUT_S = 5400


def main() -> int:
    """Run the selected kernels and store the results. Return 1 if a result is missing or incomplete."""
    failed = 0
    wanted = sys.argv[1:]
    for kernel, variant in RUNS:
        if wanted and wanted != [kernel, variant][: len(wanted)]:
            continue
        began, recorded = time.monotonic(), results.tree()
        try:
            found = guest.run(KERNELS[kernel], VARIANTS[variant], _TIMEOUT_S)
        except guest.GuestError as error:
            print(error, file=sys.stderr)
            failed = 1
            continue
        print(found.pop("console", ""), file=sys.stderr)
        results.save(kernel, variant, found | {"recorded": recorded})
        ended = "complete" if found.get("complete") else "NOT complete"
        print(f"{found['kernel']} {variant}: {ended} after {time.monotonic() - began:.0f} s", flush=True)
        failed |= not found.get("complete")
    table.main()
    return failed


if __name__ == "__main__":
    sys.exit(main())
