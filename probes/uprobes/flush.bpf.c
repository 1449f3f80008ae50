/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Flushing: batches by type, the pages they write, and the threads that do it. */

/* A batch that is asked for more pages than this has no limit (ULINT_MAX). */
#define NO_LIMIT (1ULL << 32)

static inline int batch_enter(u32 point, u64 type, u64 asked)
{
	if (elsewhere() || !begin(point, type))
		return 0;
	if (asked < NO_LIMIT)
		add(FLUSH_BATCH_ASKED_PAGES, FLUSH_BATCH_ASKED_PAGES_LABELS, type, asked);
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
		add(FLUSH_BATCHES_REFUSED, FLUSH_BATCHES_REFUSED_LABELS, type, 1);
		return 0;
	}
	add(FLUSH_BATCHES, FLUSH_BATCHES_LABELS, type, 1);
	observe(FLUSH_BATCH_SECONDS, FLUSH_BATCH_SECONDS_LABELS, type, took);
	if (pages < NO_LIMIT) {
		add(FLUSHED_PAGES, FLUSHED_PAGES_LABELS, type, pages);
		add(FLUSHED_PAGES_BY_THREAD, FLUSHED_PAGES_BY_THREAD_LABELS, thread_kind(), pages);
	}
	return 0;
}

#ifdef HAVE_FLUSH_BATCH
int flush_batch_enter(struct pt_regs *ctx)
{
	return batch_enter(FLUSH_BATCH, flush_batch_type(ctx), flush_batch_asked(ctx));
}

int flush_batch_leave(struct pt_regs *ctx)
{
	return batch_leave(FLUSH_BATCH, flush_batch_ran(ctx), flush_batch_pages(ctx));
}
#endif

#ifdef HAVE_FLUSH_LRU_BATCH
int flush_lru_batch_enter(struct pt_regs *ctx)
{
	return batch_enter(FLUSH_LRU_BATCH, FLUSHED_PAGES_LRU, flush_lru_batch_asked(ctx));
}

int flush_lru_batch_leave(struct pt_regs *ctx)
{
	return batch_leave(FLUSH_LRU_BATCH, 1, NOTHING);
}
#endif

#ifdef HAVE_PAGE_FLUSH
/* Count one page handed to the operating system. If the type is not an argument, the enclosing batch call
 * determines it. */
static inline void page_flushed(u64 type)
{
	add(FLUSHED_PAGES, FLUSHED_PAGES_LABELS, type, 1);
	add(FLUSHED_PAGES_BY_THREAD, FLUSHED_PAGES_BY_THREAD_LABELS, thread_kind(), 1);
}

int page_flush_enter(struct pt_regs *ctx)
{
	u64 type = page_flush_type(ctx);
	if (elsewhere() || !begin(PAGE_FLUSH, inside(FLUSH_LRU_BATCH) == NOTHING ? type : FLUSHED_PAGES_LRU))
		return 0;
	return 0;
}

/* A page that another thread holds is skipped: only the return value shows whether the page was flushed. */
int page_flush_leave(struct pt_regs *ctx)
{
	u64 type, took;
	if (elsewhere())
		return 0;
	took = end(PAGE_FLUSH, &type);
	if (took && page_flush_done(ctx))
		page_flushed(type);
	return 0;
}
#endif

#ifdef HAVE_SINGLE_PAGE_FLUSH
int single_page_flush_enter(struct pt_regs *ctx)
{
	return timed_enter(SINGLE_PAGE_FLUSH);
}

int single_page_flush_leave(struct pt_regs *ctx)
{
	return timed_leave(SINGLE_PAGE_FLUSH, SINGLE_PAGE_FLUSH_SECONDS);
}
#endif

#ifdef HAVE_FLUSH_WAIT
int flush_wait_enter(struct pt_regs *ctx)
{
	return timed_enter(FLUSH_WAIT);
}

int flush_wait_leave(struct pt_regs *ctx)
{
	return timed_leave(FLUSH_WAIT, FLUSH_WAIT_SECONDS);
}
#endif
