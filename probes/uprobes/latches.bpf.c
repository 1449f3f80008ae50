/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Contended latches: threads that spin, by the line of code that requests the latch, and threads that sleep.
 */

#if defined(HAVE_MUTEX_SPIN) || defined(HAVE_RW_LOCK_SPIN)

/* The place of the request. `file` is the address of a string of the server, which the agent reads once per
 * site. */
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
	if (!count) { /* the map is full: use the entry {0, 0} that the agent has created for this */
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

#ifdef HAVE_MUTEX_SPIN
int mutex_spin_enter(struct pt_regs *ctx)
{
	return spins(MUTEX_SPIN, mutex_spin_file(ctx), mutex_spin_line(ctx));
}
#endif

#ifdef HAVE_RW_LOCK_SPIN
int rw_lock_spin_enter(struct pt_regs *ctx)
{
	return spins(RW_LOCK_SPIN, rw_lock_spin_file(ctx), rw_lock_spin_line(ctx));
}
#endif

#ifdef HAVE_LATCH_WAIT
int latch_wait_enter(struct pt_regs *ctx)
{
	return timed_enter(LATCH_WAIT);
}

int latch_wait_leave(struct pt_regs *ctx)
{
	return timed_leave(LATCH_WAIT, LATCH_WAIT_SECONDS);
}
#endif

#ifdef HAVE_MUTEX_WAIT
/* The slow path of pthread_mutex_lock in libc, by mutex: those for which the server exports a symbol. */
BPF_HASH(mutexes, u64, u32, 256);

int mutex_wait_enter(struct pt_regs *ctx)
{
	u64 address = mutex_wait_mutex(ctx);
	u32 *index;
	/* Count the hit before the lookup, because hits of mutexes without a name cost as much. */
	if (elsewhere() || !hit(MUTEX_WAIT))
		return 0;
	index = mutexes.lookup(&address);
	if (index)
		remember(MUTEX_WAIT, *index);
	return 0;
}

int mutex_wait_leave(struct pt_regs *ctx)
{
	u64 index, took;
	if (elsewhere())
		return 0;
	took = end(MUTEX_WAIT, &index);
	if (took)
		observe(MUTEX_WAIT_SECONDS, MUTEX_WAIT_SECONDS_LABELS, index, took);
	return 0;
}
#endif
