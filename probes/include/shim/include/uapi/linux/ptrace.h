#pragma once
#include <linux/types.h>
/* The context of a uprobe program: the user registers as the kernel saves them (asm/ptrace.h of each
 * architecture). */
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
struct pt_regs {
	union {
		struct user_pt_regs user_regs;
		struct {
			__u64 regs[31];
			__u64 sp;
			__u64 pc;
			__u64 pstate;
		};
	};
};
#else
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs,
		flags, sp, ss;
};
#endif
