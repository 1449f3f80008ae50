/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Opening tables and collecting their statistics. */

#ifdef HAVE_TABLE_OPEN
int table_open_enter(struct pt_regs *ctx)
{
	return counted(TABLE_OPEN, INNODB_TABLE_OPENS);
}
#endif

#ifdef HAVE_STATISTICS_UPDATE
int statistics_update_enter(struct pt_regs *ctx)
{
	return timed_enter(STATISTICS_UPDATE);
}

int statistics_update_leave(struct pt_regs *ctx)
{
	return timed_leave(STATISTICS_UPDATE, STATISTICS_UPDATE_SECONDS);
}
#endif
