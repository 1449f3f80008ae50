/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Crash recovery and shutdown: the progress of a server while nobody can log in to it. */

#ifdef HAVE_RECOVERY_SCAN
int recovery_scan_enter(struct pt_regs *ctx)
{
	return counted(RECOVERY_SCAN, RECOVERY_SCANS);
}
#endif

#ifdef HAVE_RECOVERED_PAGE
int recovered_page_enter(struct pt_regs *ctx)
{
	return counted(RECOVERED_PAGE, RECOVERED_PAGES);
}
#endif

#ifdef HAVE_RECOVERY_APPLY
int recovery_apply_enter(struct pt_regs *ctx)
{
	return timed_enter(RECOVERY_APPLY);
}

int recovery_apply_leave(struct pt_regs *ctx)
{
	return timed_leave(RECOVERY_APPLY, RECOVERY_APPLY_SECONDS);
}
#endif

static inline int shutdown_phase(u32 point, u64 phase)
{
	if (elsewhere() || !hit(point))
		return 0;
	add(SHUTDOWN_PHASES, SHUTDOWN_PHASES_LABELS, phase, 1);
	return 0;
}

#ifdef HAVE_SHUTDOWN_BEGIN
int shutdown_begin_enter(struct pt_regs *ctx)
{
	return shutdown_phase(SHUTDOWN_BEGIN, SHUTDOWN_PHASES_BEGIN);
}
#endif

#ifdef HAVE_SHUTDOWN_FLUSH
int shutdown_flush_enter(struct pt_regs *ctx)
{
	return shutdown_phase(SHUTDOWN_FLUSH, SHUTDOWN_PHASES_FLUSH);
}
#endif

#ifdef HAVE_SHUTDOWN_FREE
int shutdown_free_enter(struct pt_regs *ctx)
{
	return shutdown_phase(SHUTDOWN_FREE, SHUTDOWN_PHASES_FREE);
}
#endif
