/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Flushing: batches by type, the pages they write, and the threads that write them. */

/* A batch that requests at least this many pages is unlimited (the server passes ULINT_MAX). */
#define NO_LIMIT (1ULL << 32)

static inline int batch_enter(u32 point, u64 type, u64 asked)
{
	if (elsewhere() || !begin(point, type))
		return 0;
	if (asked < NO_LIMIT)
		ADD(flush_batch_asked_pages, type, asked);
	return 0;
}

static inline int batch_leave(u32 point, u64 ran, u64 pages)
{
	u64 type, took;
	if (elsewhere())
		return 0;
	took = end(point, &type);
	if (!took)
		return 0;
	if (!ran) {
		ADD(flush_batches_refused, type, 1);
		return 0;
	}
	ADD(flush_batches, type, 1);
	OBSERVE(flush_batch_seconds, type, took);
	if (pages < NO_LIMIT) {
		ADD(flushed_pages, type, pages);
		ADD(flushed_pages_by_thread, thread_kind(), pages);
	}
	return 0;
}

#ifdef HAVE_flush_batch
int flush_batch_enter(struct pt_regs *ctx)
{
	return batch_enter(POINT_flush_batch, flush_batch_type(ctx), flush_batch_asked(ctx));
}

int flush_batch_leave(struct pt_regs *ctx)
{
	return batch_leave(POINT_flush_batch, flush_batch_ran(ctx), flush_batch_pages(ctx));
}
#endif

#ifdef HAVE_flush_lru_batch
int flush_lru_batch_enter(struct pt_regs *ctx)
{
	return batch_enter(POINT_flush_lru_batch, LABEL_flushed_pages_lru, flush_lru_batch_asked(ctx));
}

int flush_lru_batch_leave(struct pt_regs *ctx)
{
	return batch_leave(POINT_flush_lru_batch, 1, NOTHING);
}
#endif

#ifdef HAVE_page_flush
/* Count one page whose write was issued to the operating system. */
static inline void page_flushed(u64 type)
{
	ADD(flushed_pages, type, 1);
	ADD(flushed_pages_by_thread, thread_kind(), 1);
}

/* A page that is flushed inside a call to flush_lru_batch counts as flushed from the LRU list, whatever type
 * the arguments specify. */
int page_flush_enter(struct pt_regs *ctx)
{
	u64 type = page_flush_type(ctx);
	if (!elsewhere())
		begin(POINT_page_flush,
		      inside(POINT_flush_lru_batch) == NOTHING ? type : LABEL_flushed_pages_lru);
	return 0;
}

/* A page latched by another thread is skipped, so only the return value shows whether the page was flushed.
 */
int page_flush_leave(struct pt_regs *ctx)
{
	u64 type, took;
	if (elsewhere())
		return 0;
	took = end(POINT_page_flush, &type);
	if (took && page_flush_done(ctx))
		page_flushed(type);
	return 0;
}
#endif

#ifdef HAVE_single_page_flush
int single_page_flush_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_single_page_flush);
}

int single_page_flush_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_single_page_flush, SLOT_single_page_flush_seconds);
}
#endif

#ifdef HAVE_flush_wait
int flush_wait_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_flush_wait);
}

int flush_wait_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_flush_wait, SLOT_flush_wait_seconds);
}
#endif
