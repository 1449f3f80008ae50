#!/usr/bin/env bash
# Run all linters, type checkers and format checks.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-format >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang-format >/dev/null
fi
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

.venv/bin/ruff check agent dashboards packaging tests
.venv/bin/ruff format --check --quiet agent dashboards packaging tests
.venv/bin/mypy
clang-format --dry-run --Werror probes/snapshot/*.[ch] probes/profile/*.[ch] probes/trace/*.c probes/uprobes/*.c probes/include/*.h
cargo fmt --manifest-path agent/native/Cargo.toml --check
cargo fmt --manifest-path tests/fuzz/rust/Cargo.toml --check
# The same as setup.sh uses. Otherwise, the next build recompiles PyO3 and the core.
export PYO3_PYTHON=$PWD/.venv/bin/python3
cargo clippy --manifest-path agent/native/Cargo.toml --release --all-targets --no-default-features -- -D warnings
cargo clippy --manifest-path agent/native/Cargo.toml --release -- -D warnings
