#!/usr/bin/env bash
# Makes .venv with Innoscope in it, editable, and what that needs. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(clang gcc libc6-dev libelf-dev zlib1g-dev pkg-config python3-bpfcc python3-venv)

missing=()
for package in "${build_packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
    if ((EUID != 0)); then
        echo "setup: missing packages; run: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! command -v cargo >/dev/null; then
    echo "setup: cargo not found: install Rust 1.88 or newer (https://rustup.rs), then run make setup again" >&2
    exit 1
fi

# The distribution's Python, and its packages visible: bcc comes from python3-bpfcc, never from PyPI.
if [[ ! -x .venv/bin/python ]]; then
    /usr/bin/python3 -m venv --system-site-packages .venv
fi
extras=${1:-}
echo "setup: building (the first time takes a minute or two)"
# "compat": a path to agent/ instead of a finder that each start of Python would run (10 ms of 20).
.venv/bin/pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
    --editable ".${extras:+[$extras]}"
