/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The number of the highest bit; 0 for 0. Reckoned without a branch: for the verifier each one here would
 * double the rest of the program, and loading it takes CPU time that is the server's.
 */
static inline __attribute__((always_inline)) __u32 highest_bit(__u64 value)
{
	__u64 bits = 0;

	for (int width = 5; width >= 0; width--) {
		__u64 sign = -(value >> (1 << width)); /* the sign of what is not 0 */

		asm volatile("" : "+r"(sign)); /* or the compiler makes a branch of it */
		sign = sign >> 63 << width;
		bits += sign;
		value >>= sign;
	}
	return bits;
}
