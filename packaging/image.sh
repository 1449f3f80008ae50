#!/usr/bin/env bash
# Build the OCI image in dist/ from the .deb there. Arguments are passed to `python -m container`.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for package in buildah mmdebstrap; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
    if ((EUID != 0)); then
        echo "image: missing packages; run: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    echo "image: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
PYTHONPATH=packaging exec .venv/bin/python3 -m container "$@"
