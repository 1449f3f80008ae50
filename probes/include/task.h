/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/* Functions that read properties of threads, shared by several programs. Include kernel_types.h,
 * bpf_helpers.h and bpf_core_read.h first. */

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010 /* io_uring workers: threads of the process without a user stack */
#define PF_KTHREAD 0x00200000

/* THREAD_SIZE of x86-64, and of arm64 with pages of 4 or 16 KiB, without KASAN (asm/page_64_types.h,
 * asm/memory.h). */
#define KERNEL_STACK_BYTES (16 * 1024)

/* The kernel keeps at most 64 replaced return addresses per thread (MAX_URETPROBE_DEPTH). We copy one fewer,
 * because the length of 64 entries (0x400 bytes) does not fit into RETURNS_MASK (snapshot.bpf.c). */
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

/* Return true while the task is on a CPU. on_cpu is an int on older kernels, and one byte on Linux 7.2. This
 * macro reads as many bytes as the kernel's field has. */
static __always_inline _Bool is_on_cpu(struct task_struct *task)
{
	return BPF_CORE_READ_BITFIELD_PROBED(task, on_cpu) != 0;
}

enum bpf_func_id___known {
	BPF_FUNC_task_pt_regs___known = 1,
};

/* Return true if the kernel has bpf_task_pt_regs() (>= 5.15), and bpf_get_current_task_btf() (>= 5.11). */
static __always_inline _Bool finds_registers(void)
{
	return bpf_core_enum_value_exists(enum bpf_func_id___known, BPF_FUNC_task_pt_regs___known);
}

/* Return the registers that a kernel without bpf_task_pt_regs() saved at the end of the task's kernel stack:
 * task_pt_regs() in asm/processor.h. */
static __always_inline struct pt_regs *registers_on_stack(struct task_struct *task)
{
	return (struct pt_regs *)((char *)BPF_CORE_READ(task, stack) + KERNEL_STACK_BYTES -
				  bpf_core_type_size(struct pt_regs));
}

/* Return the user registers of a task, which must be a BTF pointer: the verifier rejects any other for
 * bpf_task_pt_regs(). */
static __always_inline struct pt_regs *saved_registers(struct task_struct *task)
{
	return finds_registers() ? (struct pt_regs *)bpf_task_pt_regs(task) : registers_on_stack(task);
}

/* Return the state of a task, which must be a BTF pointer, because its fields are read directly. */
static __always_inline __u64 task_state(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return ((struct task_struct___with_state *)task)->state;
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
