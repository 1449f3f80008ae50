/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Deadlock searches and row-lock waits. Only the function that begins a search may be probed: the recursive
 * function that it calls runs half a million times per second under the lock system's mutex. User
 * space computes deadlock_search_wall_ratio from deadlock_search_seconds. */

#ifdef HAVE_deadlock_search
int deadlock_search_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_deadlock_search);
}

int deadlock_search_leave(struct pt_regs *ctx)
{
	u64 value, took;
	if (elsewhere())
		return 0;
	took = end(POINT_deadlock_search, &value);
	if (!took)
		return 0;
	ADD(deadlock_searches, 0, 1);
	ADD(deadlock_search_seconds, 0, took);
	return 0;
}
#endif

#ifdef HAVE_deadlock_found
int deadlock_found_enter(struct pt_regs *ctx)
{
	return counted(POINT_deadlock_found, SLOT_deadlocks);
}
#endif

#ifdef HAVE_row_lock_wait
int row_lock_wait_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_row_lock_wait);
}

int row_lock_wait_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_row_lock_wait, SLOT_row_lock_wait_seconds);
}
#endif
