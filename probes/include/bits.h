/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Return the index of the highest set bit, or 0 for 0. The computation is branch-free: each branch would
 * double the number of paths that the verifier checks, and loading takes CPU time that the server needs.
 */
static inline __attribute__((always_inline)) __u32 highest_bit(__u64 value)
{
	__u64 bits = 0;

	for (int width = 5; width >= 0; width--) {
		__u64 sign = -(value >> (1 << width)); /* the sign bit is set if the upper part is not 0 */

		asm volatile("" : "+r"(sign)); /* keeps the compiler from using a branch */
		sign = sign >> 63 << width;
		bits += sign;
		value >>= sign;
	}
	return bits;
}
