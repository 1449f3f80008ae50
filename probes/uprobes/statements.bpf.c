/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Statements: the time from dispatch to completion. */

#ifdef HAVE_statement
int statement_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_statement);
}

int statement_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_statement, SLOT_statement_seconds);
}
#endif
