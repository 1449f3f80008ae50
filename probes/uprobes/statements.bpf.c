/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Statements, from dispatch to completion. */

#ifdef HAVE_STATEMENT
int statement_enter(struct pt_regs *ctx)
{
	return timed_enter(STATEMENT);
}

int statement_leave(struct pt_regs *ctx)
{
	return timed_leave(STATEMENT, STATEMENT_SECONDS);
}
#endif
