/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Read-ahead. The server considers it on most page reads, but rarely reads anything ahead. Only the return
 * value shows whether it did. */

static inline int considered(u32 point, u64 kind, u64 pages)
{
	if (elsewhere() || !hit(point))
		return 0;
	ADD(read_ahead_calls, kind, 1);
	if (!pages || pages == NOTHING)
		return 0;
	ADD(read_ahead_requests, kind, 1);
	ADD(read_ahead_pages, kind, pages);
	return 0;
}

#ifdef HAVE_read_ahead_linear
int read_ahead_linear_leave(struct pt_regs *ctx)
{
	return considered(POINT_read_ahead_linear, LABEL_read_ahead_pages_linear,
			  read_ahead_linear_pages(ctx));
}
#endif

#ifdef HAVE_read_ahead_random
int read_ahead_random_leave(struct pt_regs *ctx)
{
	return considered(POINT_read_ahead_random, LABEL_read_ahead_pages_random,
			  read_ahead_random_pages(ctx));
}
#endif
