#!/bin/bash
# Process 1 of the virtual machine: mount the kernel's file systems, run job_main.py and power the machine off.
# $tree and $variant come from the kernel's command line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 INNOSCOPE_CACHE=/cache
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
if [ "$variant" = cgroup-v1 ]; then
    mount -t tmpfs tmpfs /sys/fs/cgroup
    while read -r controller _; do
        mkdir "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
    done < <(grep -v '^#' /proc/cgroups)
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
[ "$variant" = no-btf ] && mount -t tmpfs tmpfs /sys/kernel/btf
ip link set lo up
cd "$tree/tests" && PYTHONPATH=. "$tree/.venv/bin/python" -m kernels.job_main "$variant" /dev/vdc
sync
echo o >/proc/sysrq-trigger
sleep 60
