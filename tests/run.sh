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

# Run the tests in three groups, in three processes, two and one (tests/conftest.py). The order of the directories
# puts the files with the longest tests first, so that the processes finish at the same time.
failed=0
if [[ " $* " == *" --full "* ]]; then
    tests/asan.sh || failed=1
fi
by_file=(--dist loadfile --no-loadscope-reorder)
.venv/bin/pytest -n 3 "${by_file[@]}" -m parallel "$@" || failed=1
.venv/bin/pytest -n 2 "${by_file[@]}" -m paired "$@" || failed=1
.venv/bin/pytest -m "not parallel and not paired" "$@" || failed=1
exit "$failed"
