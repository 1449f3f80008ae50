#!/bin/sh
# Compile or link for glibc 2.28, the version of RHEL 8 (Debian 11 has 2.31). cargo and libbpf-sys call this script in
# place of cc. Their arguments name the target without a glibc version; the -target added here overrides theirs.
exec "$ZIG" cc "$@" -target "$ZIG_MACHINE-linux-gnu.2.28"
