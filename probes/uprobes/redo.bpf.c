/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Redo log: waits until redo is written, stalls for redo space, and checkpoints. */

#ifdef HAVE_redo_write
int redo_write_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_redo_write);
}

int redo_write_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_redo_write, SLOT_redo_write_seconds);
}
#endif

#ifdef HAVE_redo_stall
int redo_stall_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_redo_stall);
}

int redo_stall_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_redo_stall, SLOT_redo_stall_seconds);
}
#endif

#ifdef HAVE_checkpoint
/* A checkpoint by a client thread is forced; background threads make fuzzy checkpoints. */
int checkpoint_enter(struct pt_regs *ctx)
{
	u32 forced = thread_kind() == THREAD_USER;
	if (elsewhere() || !hit(POINT_checkpoint))
		return 0;
	ADD(checkpoints, forced ? LABEL_checkpoints_forced : LABEL_checkpoints_fuzzy, 1);
	return 0;
}
#endif

#ifdef HAVE_forced_checkpoint
int forced_checkpoint_enter(struct pt_regs *ctx)
{
	if (elsewhere() || !hit(POINT_forced_checkpoint))
		return 0;
	if (forced_checkpoint_furious(ctx))
		ADD(checkpoints, LABEL_checkpoints_forced, 1);
	return 0;
}
#endif
