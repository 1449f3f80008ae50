/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Free pages: waits for a free page, and the server's checks for a buffer pool that is used up by locks and
 * the adaptive hash index. */

#ifdef HAVE_free_block
int free_block_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_free_block);
}

int free_block_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_free_block, SLOT_free_block_wait_seconds);
}
#endif

#ifdef HAVE_running_out
int running_out_leave(struct pt_regs *ctx)
{
	u64 result =
		running_out_short(ctx) ? LABEL_buffer_pool_running_out_yes : LABEL_buffer_pool_running_out_no;
	if (elsewhere() || !hit(POINT_running_out))
		return 0;
	ADD(buffer_pool_running_out, result, 1);
	return 0;
}
#endif
