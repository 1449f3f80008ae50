/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/*
 * Capture the stack of the current thread and send it through a ring buffer (kernel >= 5.8): a struct sample,
 * then header.stack_len bytes from the stack pointer upward. The reader unwinds it
 * (agent/native/src/samples/record.rs parses the samples).
 *
 * Include kernel_types.h, bpf_helpers.h and bpf_core_read.h first.
 */
#include "task.h"

#define SAMPLE_PAGE_BYTES 4096
/* Maximum stack bytes in samples of each size. In MySQL 9.7, a thread that reads a page uses 40 KB of
 * stack. */
#define SAMPLE_SMALL (8 * 1024)
#define SAMPLE_MIDDLE (20 * 1024)
#define SAMPLE_LARGE (60 * 1024)
#define SAMPLE_KERNEL_FRAMES 63
#define SAMPLE_NO_WAKEUP 1 /* BPF_RB_NO_WAKEUP: do not wake the reader, because it polls */

struct sample_header {
	__u32 tid;
	__u32 kind; /* values below 256 are defined by the program that uses the ring */
	__u64 weight;
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u64 lr; /* the link register; 0 if the architecture has none */
	__u64 syscall; /* -1 if the thread entered the kernel through an interrupt or a fault */
	__u64 arg0;
	__u32 stack_len;
	__u32 kernel_len; /* bytes used in `kernel` */
	__u32 returns_len; /* bytes used in `returns` */
	__u32 unused;
	char comm[16];
};

struct sample {
	struct sample_header header;
	__u64 kernel[SAMPLE_KERNEL_FRAMES + 1];
	struct replaced_return returns[MAX_RETURNS + 1];
	__u8 stack[];
};

/*
 * Return the number of bytes from the stack pointer to the end of the stack, or more than SAMPLE_LARGE if the
 * end is unknown. The C library keeps a thread's descriptor at the end of its stack. The thread pointer
 * points to it (x86-64) or to its end (arm64). The main thread's descriptor is elsewhere, but its stack ends
 * where the program's arguments begin.
 */
static __always_inline __u64 sample_depth(struct task_struct *task, __u64 sp)
{
	__u64 depth = THREAD_POINTER(task) - sp;

	if (depth > (1 << 23))
		depth = BPF_CORE_READ(task, mm, start_stack) - sp;
	return depth;
}

/*
 * Copy the stack with one call. If that fails, copy it page by page, with zeros for a page that is not in
 * memory: a large array on the stack may have pages that were never touched. `room` must be a constant.
 */
static __always_inline __u32 sample_copy(struct sample *sample, __u64 sp, __u64 depth, const __u64 room)
{
	__u64 copied = SAMPLE_PAGE_BYTES - (sp & (SAMPLE_PAGE_BYTES - 1));

	if (depth > room)
		depth = room;
	if (!bpf_probe_read_user(sample->stack, depth, (void *)sp))
		return depth;
	bpf_probe_read_user(sample->stack, copied, (void *)sp);
	for (int i = 0; i < SAMPLE_LARGE / SAMPLE_PAGE_BYTES; i++) {
		/* The comparison must use the same register as the read: the verifier tracks bounds per
		 * register. */
		barrier_var(copied);
		if (copied > room - SAMPLE_PAGE_BYTES || copied >= depth)
			break;
		bpf_probe_read_user(&sample->stack[copied], SAMPLE_PAGE_BYTES, (void *)(sp + copied));
		copied += SAMPLE_PAGE_BYTES;
	}
	return copied < depth ? copied : depth;
}

static __always_inline int sample_emit(void *ctx, void *ring, struct task_struct *task, struct pt_regs *regs,
				       __u32 kind, __u64 weight, __u64 depth, const __u64 room,
				       const int with_kernel)
{
	struct sample *sample = bpf_ringbuf_reserve(ring, sizeof(*sample) + room, 0);
	struct sample_header *header;

	if (!sample)
		return -1;
	header = &sample->header;
	header->tid = BPF_CORE_READ(task, pid);
	header->kind = kind;
	header->weight = weight;
	header->ip = REGISTER_IP(regs);
	header->sp = REGISTER_SP(regs);
	header->bp = REGISTER_BP(regs);
	header->lr = REGISTER_LR(regs);
	header->syscall = REGISTER_SYSCALL(regs);
	header->arg0 = REGISTER_ARG0(regs);
	header->kernel_len = 0;
	header->unused = 0;
	bpf_probe_read_kernel_str(header->comm, sizeof(header->comm), task->comm);
	header->returns_len = copy_replaced_returns(task, sample->returns);
	header->stack_len = sample_copy(sample, header->sp, depth, room);
	if (with_kernel) {
		long bytes = bpf_get_stack(ctx, sample->kernel, SAMPLE_KERNEL_FRAMES * 8, 0);

		header->kernel_len = bytes > 0 ? bytes : 0;
	}
	bpf_ringbuf_submit(sample, SAMPLE_NO_WAKEUP);
	return 0;
}

/*
 * Send the stack of the current thread. `regs` are its user registers (saved_registers(task), or a uprobe's
 * own ctx). Return 0, or -1 if the ring is full. A thread that has almost exited no longer has an address
 * space; its sample is sent without a stack.
 */
static __always_inline int sample_take(void *ctx, void *ring, struct task_struct *task, struct pt_regs *regs,
				       __u32 kind, __u64 weight, const int with_kernel)
{
	__u64 depth = 0;

	if (BPF_CORE_READ(task, mm))
		depth = sample_depth(task, REGISTER_SP(regs));
	if (depth <= SAMPLE_SMALL)
		return sample_emit(ctx, ring, task, regs, kind, weight, depth, SAMPLE_SMALL, with_kernel);
	if (depth <= SAMPLE_MIDDLE)
		return sample_emit(ctx, ring, task, regs, kind, weight, depth, SAMPLE_MIDDLE, with_kernel);
	return sample_emit(ctx, ring, task, regs, kind, weight, depth, SAMPLE_LARGE, with_kernel);
}
