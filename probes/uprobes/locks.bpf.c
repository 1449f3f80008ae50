/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Deadlock searches and row-lock waits. Only the function that begins a search may be probed: the recursive
 * one that it calls runs half a million times per second under the lock system's mutex. */

#ifdef HAVE_DEADLOCK_SEARCH
int deadlock_search_enter(struct pt_regs *ctx)
{
	return timed_enter(DEADLOCK_SEARCH);
}

int deadlock_search_leave(struct pt_regs *ctx)
{
	u64 value, took;
	if (elsewhere())
		return 0;
	took = end(DEADLOCK_SEARCH, &value);
	if (!took)
		return 0;
	add(DEADLOCK_SEARCHES, DEADLOCK_SEARCHES_LABELS, 0, 1);
	add(DEADLOCK_SEARCH_SECONDS, DEADLOCK_SEARCH_SECONDS_LABELS, 0, took);
	return 0;
}
#endif

#ifdef HAVE_DEADLOCK_FOUND
int deadlock_found_enter(struct pt_regs *ctx)
{
	return counted(DEADLOCK_FOUND, DEADLOCKS);
}
#endif

#ifdef HAVE_ROW_LOCK_WAIT
int row_lock_wait_enter(struct pt_regs *ctx)
{
	return timed_enter(ROW_LOCK_WAIT);
}

int row_lock_wait_leave(struct pt_regs *ctx)
{
	return timed_leave(ROW_LOCK_WAIT, ROW_LOCK_WAIT_SECONDS);
}
#endif
