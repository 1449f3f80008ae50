/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/* What several programs ask of a thread. Needs kernel_types.h, bpf_helpers.h and bpf_core_read.h before it.
 */

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010 /* io_uring's helpers: in the process, with no user stack */
#define PF_KTHREAD 0x00200000

/* The kernel keeps at most 64 a thread (MAX_URETPROBE_DEPTH). */
#define MAX_RETURNS 63

/* A return address that a return probe replaced on the stack. */
struct replaced_return {
	__u64 slot; /* where on the stack the return address was */
	__u64 address; /* what it was */
};

static __always_inline __u64 context_switches(struct task_struct *task)
{
	return BPF_CORE_READ(task, nvcsw) + BPF_CORE_READ(task, nivcsw);
}

/*
 * On the stack itself such calls return to the [uprobes] page. Bytes written; room for MAX_RETURNS. To be
 * called before the program's ways part: the verifier goes through this loop once for each.
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
