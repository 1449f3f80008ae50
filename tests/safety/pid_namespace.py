"""Run a script in its own pid namespace, where it can choose the pid of the next process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1]


def run_in_pid_namespace(module: str, *arguments: object) -> Any:
    """Run a module of the tests, and return the JSON that it prints. Fail if the module fails."""
    result = subprocess.run(
        [
            "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
            sys.executable, "-m", module, *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(_TESTS)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
