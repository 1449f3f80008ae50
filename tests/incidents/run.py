"""``python -m incidents.run [--times 3] [--account] [NAME …]``: run the lab, and compare the repetitions."""

from __future__ import annotations

import argparse
import sys

from incidents import lab_results as store
from incidents.all_incidents import BY_NAME
from incidents.expectations import errors
from incidents.lab import run


def main() -> int:
    """Run the lab; return 0 if all runs gave the expected results and agree with each other."""
    options = _options()
    if not options.keep:
        store.forget()
    failures = 0
    for number in range(1, options.times + 1):
        for name in options.names or BY_NAME:
            failures += _one(name, number, account=options.account)
    for name, firsts in store.disagreeing().items():
        failures += 1
        print(f"{name}: the runs disagree: {', '.join(map(str, firsts))}")
    print(f"{failures or 'nothing'} wrong; {store.FILE}")
    return int(failures > 0)


def _one(name: str, number: int, *, account: bool) -> int:
    """Run an incident and print the result; return the number of errors."""
    incident = BY_NAME[name]
    try:
        outcome = run(incident, account=account)
    except Exception as error:  # continue with the other incidents
        print(f"{number}  {name:<28} failed: {type(error).__name__}: {error}", flush=True)
        return 1
    line = store.keep(incident, outcome)
    print(f"{number}  {name:<28} {line['seconds']:>6.1f} s  {', '.join(line['findings'])}", flush=True)
    complaints = list(errors(incident, outcome))
    for complaint in complaints:
        print(f"   {complaint}", flush=True)
    return len(complaints)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="incidents.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how often (1)")
    parser.add_argument(
        "--account", action="store_true", help="use the account of packaging/account.sql, not root"
    )
    parser.add_argument("--keep", action="store_true", help="add to the existing results")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BY_NAME]:
        parser.error(f"no such incident: {', '.join(unknown)}; the incidents are: {', '.join(BY_NAME)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
