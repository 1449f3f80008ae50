/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/*
 * Architecture-specific access to the user registers that the kernel saved, and to the thread pointer.
 * kernel_types.h includes this file.
 */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)

struct thread_struct {
	unsigned long fsbase;
};

/* arch/x86/include/asm/ptrace.h */
struct pt_regs {
	unsigned long bp;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long sp;
};

#define THREAD_POINTER(task) BPF_CORE_READ(task, thread.fsbase)
#define REGISTER_IP(regs) BPF_CORE_READ(regs, ip)
#define REGISTER_SP(regs) BPF_CORE_READ(regs, sp)
#define REGISTER_BP(regs) BPF_CORE_READ(regs, bp)
#define REGISTER_LR(regs) 0
#define REGISTER_SYSCALL(regs) BPF_CORE_READ(regs, orig_ax)
#define REGISTER_ARG0(regs) BPF_CORE_READ(regs, di)

#elif defined(__TARGET_ARCH_arm64)

/* arch/arm64/include/asm/processor.h */
struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
};

/* arch/arm64/include/asm/ptrace.h. syscallno is -1 if the thread entered the kernel by an exception other
 * than a system call. */
struct pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 orig_x0;
	__s32 syscallno;
};

#define THREAD_POINTER(task) BPF_CORE_READ(task, thread.uw.tp_value)
#define REGISTER_IP(regs) BPF_CORE_READ(regs, pc)
#define REGISTER_SP(regs) BPF_CORE_READ(regs, sp)
#define REGISTER_BP(regs) BPF_CORE_READ(regs, regs[29])
#define REGISTER_LR(regs) BPF_CORE_READ(regs, regs[30])
#define REGISTER_SYSCALL(regs) BPF_CORE_READ(regs, syscallno)
#define REGISTER_ARG0(regs) BPF_CORE_READ(regs, orig_x0)

#else
#error "no registers for this architecture"
#endif

#pragma clang attribute pop
