#!/bin/sh
# innoscope-sensor [OPTION]…: start the sensor as its own user, with the capabilities of innoscope-sensor.service and no
# others. Options are passed to `innoscope sensor`.
# Kubernetes gives capabilities only to containers that start as root: for other users, it does not set the ambient
# capabilities (kubernetes/kubernetes#56374). Therefore the container starts as root with SETUID, SETGID and SETPCAP in
# addition, which setpriv drops together with uid 0.
# INNOSCOPE_SYS_ADMIN=1 also keeps CAP_SYS_ADMIN, for kernels on which probes need it (docs/kubernetes.md).
set -eu
umask 077
kept=-all,+bpf,+perfmon,+sys_ptrace,+checkpoint_restore,+dac_read_search
if [ "${INNOSCOPE_SYS_ADMIN:-0}" = 1 ]; then
    kept=$kept,+sys_admin
fi
exec setpriv --reuid=innoscope-sensor --regid=innoscope-sensor --groups=innoscope --no-new-privs \
    --bounding-set="$kept" --inh-caps="$kept" --ambient-caps="$kept" \
    /usr/bin/innoscope sensor --group innoscope "$@"
