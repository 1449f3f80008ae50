#!/bin/sh
# boot.sh BASE PLACE [OURS THEIRS]… -- COMMAND…: set up a machine's root directory below PLACE and run COMMAND in
# it as process 1. The root is an overlay in memory on top of BASE. The machine sees no directories of the host
# except each OURS, which is mounted read-only at THEIRS.
set -e
base=$1 place=$2
shift 2

mount -t tmpfs -o mode=755 tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay -o "lowerdir=$base,upperdir=$place/upper,workdir=$place/work" overlay "$place/root"
cd "$place/root"
while [ "$1" != -- ]; do
    mkdir -p "./$2"
    mount --bind -o ro "$1" "./$2"
    shift 2
done
shift
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp

# In the machine's cgroup namespace, the cgroups of this process are the roots. A host may use cgroup version 1,
# which has one tree per controller.
if [ "$(stat --file-system --format=%T /sys/fs/cgroup)" = cgroup2fs ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        case $controllers in
        "") name=unified type=cgroup2 options=rw ;;
        name=*) name=${controllers#name=} type=cgroup options=none,$controllers ;;
        *) name=$controllers type=cgroup options=$controllers ;;
        esac
        mkdir "sys/fs/cgroup/$name"
        mount -t $type -o "$options" cgroup "sys/fs/cgroup/$name"
    done </proc/self/cgroup
fi

mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"
done
mknod -m 666 dev/tty c 5 0

pivot_root . mnt
umount -l /mnt
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
