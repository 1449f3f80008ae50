/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Background activity: the master thread, purge, the change buffer. */

#ifdef HAVE_MASTER_TICK
int master_tick_enter(struct pt_regs *ctx)
{
	return counted(MASTER_TICK, MASTER_TICKS);
}
#endif

#ifdef HAVE_PURGE
int purge_enter(struct pt_regs *ctx)
{
	if (elsewhere() || !begin(PURGE, 0))
		return 0;
	add(PURGE_BATCHES, PURGE_BATCHES_LABELS, 0, 1);
	return 0;
}

int purge_leave(struct pt_regs *ctx)
{
	return timed_leave(PURGE, PURGE_BATCH_SECONDS);
}
#endif

#ifdef HAVE_CHANGE_BUFFER_MERGE
int change_buffer_merge_enter(struct pt_regs *ctx)
{
	if (elsewhere() || !begin(CHANGE_BUFFER_MERGE, 0))
		return 0;
	add(CHANGE_BUFFER_MERGES, CHANGE_BUFFER_MERGES_LABELS, 0, 1);
	return 0;
}

int change_buffer_merge_leave(struct pt_regs *ctx)
{
	return timed_leave(CHANGE_BUFFER_MERGE, CHANGE_BUFFER_MERGE_SECONDS);
}
#endif
