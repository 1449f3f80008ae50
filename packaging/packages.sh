#!/usr/bin/env bash
# Build the packages in dist/. Arguments are passed to `python -m distribution`.
# MAINTAINER='Name <address>': the Maintainer of the .deb and the Packager of the .rpms.
set -euo pipefail
cd "$(dirname "$0")/.."

needed=(binutils debhelper rpm)
[[ " $* " == *" aarch64 "* && $(uname -m) != aarch64 ]] && needed+=(binutils-aarch64-linux-gnu)
[[ " $* " == *" --sign-key "* ]] && needed+=(apt-utils gnupg)
missing=()
for package in "${needed[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
    if ((EUID != 0)); then
        echo "packages: missing packages; run: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "packages: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
# Start Python under the same name as `make setup` does, because PyO3 is recompiled if the name changes.
PYTHONPATH=packaging exec .venv/bin/python3 -m distribution "$@"
