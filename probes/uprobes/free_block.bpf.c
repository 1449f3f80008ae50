/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Free pages: waits for a free page, and checks whether locks and the hash index use up the buffer pool. */

#ifdef HAVE_FREE_BLOCK
int free_block_enter(struct pt_regs *ctx)
{
	return timed_enter(FREE_BLOCK);
}

int free_block_leave(struct pt_regs *ctx)
{
	return timed_leave(FREE_BLOCK, FREE_BLOCK_WAIT_SECONDS);
}
#endif

#ifdef HAVE_RUNNING_OUT
int running_out_leave(struct pt_regs *ctx)
{
	u64 result = running_out_short(ctx) ? BUFFER_POOL_RUNNING_OUT_YES : BUFFER_POOL_RUNNING_OUT_NO;
	if (elsewhere() || !hit(RUNNING_OUT))
		return 0;
	add(BUFFER_POOL_RUNNING_OUT, BUFFER_POOL_RUNNING_OUT_LABELS, result, 1);
	return 0;
}
#endif
