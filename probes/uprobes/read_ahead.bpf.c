/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Read-ahead. It is considered at most page reads, but seldom reads anything: only the return value shows
 * whether it did. */

static inline int considered(u32 point, u64 kind, u64 pages)
{
	if (elsewhere() || !hit(point))
		return 0;
	add(READ_AHEAD_CALLS, READ_AHEAD_CALLS_LABELS, kind, 1);
	if (!pages || pages == NOTHING)
		return 0;
	add(READ_AHEAD_REQUESTS, READ_AHEAD_REQUESTS_LABELS, kind, 1);
	add(READ_AHEAD_PAGES, READ_AHEAD_PAGES_LABELS, kind, pages);
	return 0;
}

#ifdef HAVE_READ_AHEAD_LINEAR
int read_ahead_linear_leave(struct pt_regs *ctx)
{
	return considered(READ_AHEAD_LINEAR, READ_AHEAD_PAGES_LINEAR, read_ahead_linear_pages(ctx));
}
#endif

#ifdef HAVE_READ_AHEAD_RANDOM
int read_ahead_random_leave(struct pt_regs *ctx)
{
	return considered(READ_AHEAD_RANDOM, READ_AHEAD_PAGES_RANDOM, read_ahead_random_pages(ctx));
}
#endif
