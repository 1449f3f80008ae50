#!/usr/bin/env bash
# Run the Rust core's tests under AddressSanitizer, then Python tests that call all parts of the core.
set -euo pipefail
cd "$(dirname "$0")/.."

triple=$(rustc -vV | sed -n 's/^host: //p')
target=agent/native/target/asan
options=(--manifest-path agent/native/Cargo.toml --target "$triple" --target-dir "$target" --release --quiet)
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address

# These tests measure time, and ASan makes the code several times slower.
slow=(--skip less_than_50_ms --skip uses_up_the_budget_of_steps)
cargo test "${options[@]}" --no-default-features --features history -- "${slow[@]}"
cargo rustc "${options[@]}" --lib --crate-type=cdylib

# A package with the same files as ours, except for the core.
overlay=$(mktemp -d)
trap 'rm -rf "$overlay"' EXIT
mkdir "$overlay/innoscope"
ln -s "$PWD"/agent/innoscope/* "$overlay/innoscope/"
rm "$overlay/innoscope/_native.abi3.so"
cp "$target/$triple/release/lib_native.so" "$overlay/innoscope/_native.abi3.so"

# Python is not linked with ASan's runtime, so the runtime is preloaded. Leak detection is off, because Python itself
# never frees some memory. ASan reserves terabytes of address space, so tests of commands that limit it are left out.
mapfile -t tests < <(grep -lE '_native|HistoryStore|session_samples|digest|Report\b' tests/unit/test_*.py |
    grep -vE 'test_(cli_history|packs)\.py')
runtime=$(gcc -print-file-name=libasan.so)
asan() { env LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$overlay" "$@"; }
asan .venv/bin/python -c "from innoscope import _native; assert _native.__file__.startswith('$overlay')"
asan .venv/bin/pytest -q -p no:cacheprovider "${tests[@]}"
