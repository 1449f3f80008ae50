#!/bin/busybox sh
# Process 1 in the initial RAM disk: load the drivers, mount the disks and start init.sh. The kernel sets an
# environment variable for each unknown option on its command line: $tree is the path of the source tree.
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done </modules/order
until [ -b /dev/vdc ]; do /bin/busybox usleep 100000; done
/bin/busybox mount -t ext4 /dev/vda /new
/bin/busybox mkdir -p "/new$tree"
/bin/busybox mount -t ext4 /dev/vdb "/new$tree"
exec /bin/busybox switch_root /new "$tree/tests/kernels/init.sh"
