#!/usr/bin/env bash
# All tests: the Rust core's own, then everything on real servers. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

# What the tests compare with, drive or compile; the servers bring their own needs.
packages=(binutils bpftool bpftrace chromium debhelper debuginfod elfutils g++ gdb gnupg iproute2 jsonnet libc6-dbg lintian
    man-db mmdebstrap openssl prometheus python3-seccomp rpm systemd tmux util-linux xz-utils)

PYTHONPATH=tests .venv/bin/python -c \
    'import sys; from servers import ensure_packages; ensure_packages(sys.argv[1:])' "${packages[@]}"
PYTHONPATH=tests .venv/bin/python -m servers fetch
cargo test --manifest-path agent/native/Cargo.toml --release --no-default-features --quiet
exec .venv/bin/pytest "$@"
