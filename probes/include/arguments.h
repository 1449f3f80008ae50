/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/* Read the arguments of a function at its entry. Include kernel_types.h, bpf_helpers.h and bpf_core_read.h
 * first. */

#ifdef __TARGET_ARCH_x86
struct pt_regs___arguments {
	unsigned long di, si, dx, cx, r8, r9;
} __attribute__((preserve_access_index));

/* Return integer or pointer argument `number`, from 0 to 5. */
static __always_inline __u64 argument(struct pt_regs *ctx, __u32 number)
{
	struct pt_regs___arguments *regs = (void *)ctx;

	switch (number) {
	case 0:
		return BPF_CORE_READ(regs, di);
	case 1:
		return BPF_CORE_READ(regs, si);
	case 2:
		return BPF_CORE_READ(regs, dx);
	case 3:
		return BPF_CORE_READ(regs, cx);
	case 4:
		return BPF_CORE_READ(regs, r8);
	default:
		return BPF_CORE_READ(regs, r9);
	}
}
#else
static __always_inline __u64 argument(struct pt_regs *ctx, __u32 number)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (__u64 *)ctx + number);
	return value;
}
#endif
