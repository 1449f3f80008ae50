/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/* Reads properties of threads; shared by several programs. Include kernel_types.h, bpf_helpers.h and
 * bpf_core_read.h first. */

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010 /* io_uring workers: threads of the process without a user stack */
#define PF_KTHREAD 0x00200000

/* The kernel keeps at most 64 per thread (MAX_URETPROBE_DEPTH). */
#define MAX_RETURNS 63

/* A return address that a return probe replaced on the stack. */
struct replaced_return {
	__u64 slot; /* address of the stack slot */
	__u64 address; /* the original return address */
};

static __always_inline __u64 context_switches(struct task_struct *task)
{
	return BPF_CORE_READ(task, nvcsw) + BPF_CORE_READ(task, nivcsw);
}

/*
 * Copy the original return addresses of calls whose stack slot now points to the [uprobes] page, at most
 * MAX_RETURNS, and return the number of bytes written. Call this function before the program branches,
 * because the verifier checks its loop once per branch.
 */
static __always_inline __u32 copy_replaced_returns(struct task_struct *task, struct replaced_return *returns)
{
	struct return_instance *instance;
	__u32 count = 0;

	if (!bpf_core_field_exists(task->utask))
		return 0;
	instance = BPF_CORE_READ(task, utask, return_instances);
	for (int i = 0; i < MAX_RETURNS && instance; i++) {
		returns[i].slot = BPF_CORE_READ(instance, stack);
		returns[i].address = BPF_CORE_READ(instance, orig_ret_vaddr);
		instance = BPF_CORE_READ(instance, next);
		count++;
	}
	return count * sizeof(struct replaced_return);
}
