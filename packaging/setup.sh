#!/usr/bin/env bash
# Create .venv with an editable installation of Innoscope and its dependencies. Safe to run repeatedly.
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

# Use the distribution's Python with its site-packages: bcc is only available as python3-bpfcc, not from PyPI.
if [[ ! -x .venv/bin/python ]]; then
    /usr/bin/python3 -m venv --system-site-packages .venv
fi
extras=${1:-}
echo "setup: building (the first time takes a minute or two)"
# In "compat" mode, a .pth file adds agent/ to Python's path. The default, an import hook, would take 10 of the 20 ms
# that Python needs to start.
.venv/bin/pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
    --editable ".${extras:+[$extras]}"
