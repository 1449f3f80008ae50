#!/usr/bin/env bash
# Run the tests that every change must pass: first the Rust core's, then pytest's. Options are passed to pytest;
# --full runs all tests.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tools that the tests use. The servers install their own dependencies.
packages=(binutils bpftool bpftrace chromium debhelper debuginfod elfutils g++ gdb gnupg iproute2 jsonnet libc6-dbg lintian
    man-db mmdebstrap openssl prometheus python3-seccomp rpm systemd tmux util-linux xz-utils)

PYTHONPATH=tests .venv/bin/python -c \
    'import sys; from servers import ensure_packages; ensure_packages(sys.argv[1:])' "${packages[@]}"
PYTHONPATH=tests .venv/bin/python -m servers fetch
cargo test --manifest-path agent/native/Cargo.toml --release --no-default-features --quiet

# First run the tests that can run in parallel, in three processes, then the others (tests/conftest.py).
failed=0
.venv/bin/pytest -n 3 --dist loadfile -m parallel "$@" || failed=1
.venv/bin/pytest -m "not parallel" "$@" || failed=1
exit "$failed"
