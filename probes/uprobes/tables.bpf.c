/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Opening tables and collecting their statistics. */

#ifdef HAVE_table_open
int table_open_enter(struct pt_regs *ctx)
{
	return counted(POINT_table_open, SLOT_innodb_table_opens);
}
#endif

#ifdef HAVE_statistics_update
int statistics_update_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_statistics_update);
}

int statistics_update_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_statistics_update, SLOT_statistics_update_seconds);
}
#endif
