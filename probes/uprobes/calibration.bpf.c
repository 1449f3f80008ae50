/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Measure the cost of a hit on this host: Innoscope calls its own functions with and without these probes. */

int calibration_enter(struct pt_regs *ctx)
{
	return timed_enter(POINT_calibration);
}

int calibration_leave(struct pt_regs *ctx)
{
	return timed_leave(POINT_calibration, SLOT_calibration_seconds);
}
