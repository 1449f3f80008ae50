/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The doublewrite buffer: pages written through it, and its batches. */

#ifdef HAVE_doublewrite_page
int doublewrite_page_enter(struct pt_regs *ctx)
{
	return counted(POINT_doublewrite_page, SLOT_doublewrite_pages);
}
#endif

#ifdef HAVE_doublewrite_batch
int doublewrite_batch_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_doublewrite_batch);
}

int doublewrite_batch_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_doublewrite_batch, SLOT_doublewrite_batch_seconds);
}
#endif
