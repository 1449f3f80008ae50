/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The doublewrite buffer: pages that go through it, and its batches. */

#ifdef HAVE_DOUBLEWRITE_PAGE
int doublewrite_page_enter(struct pt_regs *ctx)
{
	return counted(DOUBLEWRITE_PAGE, DOUBLEWRITE_PAGES);
}
#endif

#ifdef HAVE_DOUBLEWRITE_BATCH
int doublewrite_batch_enter(struct pt_regs *ctx)
{
	return timed_enter(DOUBLEWRITE_BATCH);
}

int doublewrite_batch_leave(struct pt_regs *ctx)
{
	return timed_leave(DOUBLEWRITE_BATCH, DOUBLEWRITE_BATCH_SECONDS);
}
#endif
