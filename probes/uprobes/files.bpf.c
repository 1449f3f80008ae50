/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* System calls on files, counted by descriptor. User space looks up the kind of file of each descriptor in
 * /proc/PID/fd, and computes fsync_seconds and read_seconds from the `files` map. */

#if defined(HAVE_fsync) || defined(HAVE_fdatasync) || defined(HAVE_pread)

/* Operations. fsync and fdatasync are counted separately, because their probes have different extrapolation
 * factors. */
#define SYNCED 0
#define READ 1
#define DATA_SYNCED 2

struct file_key {
	u32 fd;
	u32 operation;
};

/* The descriptor of the overflow entry, which user space creates for files that do not fit in the map. */
#define OTHER_FILES (~0U)

BPF_HASH(files, struct file_key, struct histogram, 4096);

static inline int file_enter(u32 point, u64 fd)
{
	if (!elsewhere())
		begin(point, fd);
	return 0;
}

static inline int file_leave(u32 point, u32 operation)
{
	struct file_key key = {0, operation};
	struct histogram empty = {}, *histogram;
	u64 fd, took;
	if (elsewhere())
		return 0;
	took = end(point, &fd);
	if (!took)
		return 0;
	key.fd = (u32)fd;
	histogram = files.lookup_or_try_init(&key, &empty);
	if (!histogram) {
		drop(DROPPED_FILES);
		key.fd = OTHER_FILES;
		histogram = files.lookup(&key);
	}
	if (histogram)
		spread(histogram, took);
	return 0;
}
#endif

#ifdef HAVE_fsync
int fsync_enter(struct pt_regs *ctx)
{
	return file_enter(POINT_fsync, fsync_fd(ctx));
}

int fsync_leave(struct pt_regs *ctx)
{
	return file_leave(POINT_fsync, SYNCED);
}
#endif

#ifdef HAVE_fdatasync
int fdatasync_enter(struct pt_regs *ctx)
{
	return file_enter(POINT_fdatasync, fdatasync_fd(ctx));
}

int fdatasync_leave(struct pt_regs *ctx)
{
	return file_leave(POINT_fdatasync, DATA_SYNCED);
}
#endif

#ifdef HAVE_pread
int pread_enter(struct pt_regs *ctx)
{
	return file_enter(POINT_pread, pread_fd(ctx));
}

int pread_leave(struct pt_regs *ctx)
{
	return file_leave(POINT_pread, READ);
}
#endif
