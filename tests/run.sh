#!/usr/bin/env bash
# All tests: the Rust core's own, then everything on real servers. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHONPATH=tests .venv/bin/python -m servers fetch
cargo test --manifest-path agent/native/Cargo.toml --release --no-default-features --quiet
exec .venv/bin/pytest "$@"
