/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Redo log: waits until it is written, stalls because its space is used up, checkpoints. */

#ifdef HAVE_REDO_WRITE
int redo_write_enter(struct pt_regs *ctx)
{
	return timed_enter(REDO_WRITE);
}

int redo_write_leave(struct pt_regs *ctx)
{
	return timed_leave(REDO_WRITE, REDO_WRITE_SECONDS);
}
#endif

#ifdef HAVE_REDO_STALL
int redo_stall_enter(struct pt_regs *ctx)
{
	return timed_enter(REDO_STALL);
}

int redo_stall_leave(struct pt_regs *ctx)
{
	return timed_leave(REDO_STALL, REDO_STALL_SECONDS);
}
#endif

#ifdef HAVE_CHECKPOINT
/* A checkpoint by a client's thread is a forced one; background threads take the fuzzy ones. */
int checkpoint_enter(struct pt_regs *ctx)
{
	u32 forced = thread_kind() == THREAD_USER;
	if (elsewhere() || !hit(CHECKPOINT))
		return 0;
	add(CHECKPOINTS, CHECKPOINTS_LABELS, forced ? CHECKPOINTS_FORCED : CHECKPOINTS_FUZZY, 1);
	return 0;
}
#endif

#ifdef HAVE_FORCED_CHECKPOINT
int forced_checkpoint_enter(struct pt_regs *ctx)
{
	if (elsewhere() || !hit(FORCED_CHECKPOINT))
		return 0;
	if (forced_checkpoint_furious(ctx))
		add(CHECKPOINTS, CHECKPOINTS_LABELS, CHECKPOINTS_FORCED, 1);
	return 0;
}
#endif
