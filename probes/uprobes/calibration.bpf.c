/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What a hit costs on this host: a function of our own is called with and without these. */

int calibration_enter(struct pt_regs *ctx)
{
	return timed_enter(CALIBRATION);
}

int calibration_leave(struct pt_regs *ctx)
{
	return timed_leave(CALIBRATION, CALIBRATION_SECONDS);
}
