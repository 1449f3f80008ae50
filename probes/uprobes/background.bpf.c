/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Background activity: the master thread, purge, and merges of the change buffer. */

#ifdef HAVE_master_tick
int master_tick_enter(struct pt_regs *ctx)
{
	return counted(POINT_master_tick, SLOT_master_ticks);
}
#endif

#ifdef HAVE_purge
int purge_enter(struct pt_regs *ctx)
{
	if (elsewhere() || !begin(POINT_purge, 0))
		return 0;
	ADD(purge_batches, 0, 1);
	return 0;
}

int purge_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_purge, SLOT_purge_batch_seconds);
}
#endif

#ifdef HAVE_change_buffer_merge
int change_buffer_merge_enter(struct pt_regs *ctx)
{
	if (elsewhere() || !begin(POINT_change_buffer_merge, 0))
		return 0;
	ADD(change_buffer_merges, 0, 1);
	return 0;
}

int change_buffer_merge_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_change_buffer_merge, SLOT_change_buffer_merge_seconds);
}
#endif
