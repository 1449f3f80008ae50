"""The methods for copying stacks (``Engine(method=…)``)."""

from __future__ import annotations

#: Methods that do not stop the process, in the order in which they are tried.
STOPPING_NOTHING = ("bpf", "bpf-nosleep", "procfs")
ALL = (*STOPPING_NOTHING, "ptrace")
