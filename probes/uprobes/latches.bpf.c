/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Contended latches. Requests that spin are counted per source line of the request; user space computes
 * latch_spin_waits from the `sites` map. Sleeping requests are timed. */

#if defined(HAVE_mutex_spin) || defined(HAVE_rw_lock_spin)

/* The source location of the request. `file` is the address of a string in the server's memory, which user
 * space reads once per site. */
struct site {
	u64 file;
	u64 line;
};

BPF_HASH(sites, struct site, u64, 1024);

static inline int spins(u32 point, u64 file, u64 line)
{
	struct site site = {file, line};
	u64 none = 0, *count;
	if (elsewhere() || !hit(point))
		return 0;
	count = sites.lookup_or_try_init(&site, &none);
	if (!count) { /* the map is full: use the overflow entry {0, 0}, created by user space */
		drop(DROPPED_SITES);
		site.file = 0;
		site.line = 0;
		count = sites.lookup(&site);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
#endif

#ifdef HAVE_mutex_spin
int mutex_spin_enter(struct pt_regs *ctx)
{
	return spins(POINT_mutex_spin, mutex_spin_file(ctx), mutex_spin_line(ctx));
}
#endif

#ifdef HAVE_rw_lock_spin
int rw_lock_spin_enter(struct pt_regs *ctx)
{
	return spins(POINT_rw_lock_spin, rw_lock_spin_file(ctx), rw_lock_spin_line(ctx));
}
#endif

#ifdef HAVE_latch_wait
int latch_wait_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_latch_wait);
}

int latch_wait_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_latch_wait, SLOT_latch_wait_seconds);
}
#endif

#ifdef HAVE_mutex_wait
/* Address of each mutex whose symbol the server exports -> index of its label value. The probe is on the
 * slow path of libc's pthread_mutex_lock. User space fills the map. */
BPF_HASH(mutexes, u64, u32, 256);

int mutex_wait_enter(struct pt_regs *ctx)
{
	u64 address = mutex_wait_mutex(ctx);
	u32 *index;
	/* Count the hit before the lookup, because hits on unnamed mutexes cost just as much. */
	if (elsewhere() || !hit(POINT_mutex_wait))
		return 0;
	index = mutexes.lookup(&address);
	if (index)
		remember(POINT_mutex_wait, *index);
	return 0;
}

int mutex_wait_leave(struct pt_regs *ctx)
{
	u64 index, took;
	if (elsewhere())
		return 0;
	took = end(POINT_mutex_wait, &index);
	if (took)
		OBSERVE(mutex_wait_seconds, index, took);
	return 0;
}
#endif
