/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Crash recovery and shutdown: the progress of a server while no client can log in. */

#ifdef HAVE_recovery_scan
int recovery_scan_enter(struct pt_regs *ctx)
{
	return counted(POINT_recovery_scan, SLOT_recovery_scans);
}
#endif

#ifdef HAVE_recovered_page
int recovered_page_enter(struct pt_regs *ctx)
{
	return counted(POINT_recovered_page, SLOT_recovered_pages);
}
#endif

#ifdef HAVE_recovery_apply
int recovery_apply_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_recovery_apply);
}

int recovery_apply_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_recovery_apply, SLOT_recovery_apply_seconds);
}
#endif

static inline int shutdown_phase(u32 point, u64 phase)
{
	if (elsewhere() || !hit(point))
		return 0;
	ADD(shutdown_phases, phase, 1);
	return 0;
}

#ifdef HAVE_shutdown_begin
int shutdown_begin_enter(struct pt_regs *ctx)
{
	return shutdown_phase(POINT_shutdown_begin, LABEL_shutdown_phases_begin);
}
#endif

#ifdef HAVE_shutdown_flush
int shutdown_flush_enter(struct pt_regs *ctx)
{
	return shutdown_phase(POINT_shutdown_flush, LABEL_shutdown_phases_flush);
}
#endif

#ifdef HAVE_shutdown_free
int shutdown_free_enter(struct pt_regs *ctx)
{
	return shutdown_phase(POINT_shutdown_free, LABEL_shutdown_phases_free);
}
#endif
