/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Copy the registers and the innermost part of the stack of every thread of one process, without stopping
 * any of them.
 *
 * A task iterator visits each thread and writes one record for read(): struct record_header, then stack_len
 * bytes from the stack pointer upward, then kernel_len bytes of kernel return addresses, then returns_len
 * bytes of return addresses that return probes replaced. For a thread that has not run since its last copy,
 * only the header is written. Beyond the budget of a snapshot, only a short part of each stack is copied.
 * agent/native/src/snapshot/record.rs parses the records.
 *
 * There are two programs. The sleepable one (kernel >= 5.18) copies the stacks. The other (kernel >= 5.8)
 * cannot read pages that are not in memory, so it only states how much of each stack user space has to copy.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "task.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define PAGE_BYTES 4096
/* 20 KiB at most: a record larger than the seq_file's buffer (32 KiB) makes read() fail with E2BIG. */
#define MAX_PAGES 5
/* Enough for the innermost frames, which show what a thread is waiting for. */
#define SHALLOW_BYTES 1024
#define MAX_KERNEL_FRAMES 63
/* Masks that limit a length. Every version of the verifier understands masks. The buffers have room for the
 * maximum. */
#define STACK_MASK 0x7fffull
#define KERNEL_MASK 0x1ffull
#define RETURNS_MASK 0x3ffull

enum copy {
	COPY_WHOLE, /* as much of the stack as a record can hold */
	COPY_UNCHANGED, /* header only: the thread has not run since it was last copied completely */
	COPY_SHALLOW, /* the budget is used up, or it is another group's turn: SHALLOW_BYTES at most */
	COPY_NONE, /* an exiting thread, a kernel thread or an io_uring worker, which is only counted */
};

struct record_header {
	__u32 tid; /* in the pid namespace of the process that reads the records */
	__u32 ns_tid; /* in the process's own pid namespace */
	__u32 state;
	__u32 on_cpu_before;
	__u32 on_cpu_after;
	__u32 stack_len;
	__u32 kernel_len;
	__u32 returns_len;
	__u64 switches_before; /* nvcsw + nivcsw; if switches_after differs, the thread ran during the copy */
	__u64 switches_after;
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u64 lr; /* the link register; 0 if the architecture has none */
	__u64 syscall; /* -1 if the thread entered the kernel by an interrupt or a fault */
	__u64 arg0;
	char comm[16];
	__u32 copy; /* enum copy */
	__u32 stack_wanted; /* bytes of stack that user space has to copy: 0 if this program is sleepable */
	__u64 ran; /* run_count(); valid if the thread was off the CPU during the copy */
};

struct record {
	struct record_header header;
	__u8 stack[STACK_MASK + 1];
	__u64 kernel[MAX_KERNEL_FRAMES + 1];
	struct replaced_return returns[MAX_RETURNS + 1];
};

struct config {
	__u32 tgid; /* 0 if the iterator's link is limited to one process already (kernel >= 6.1) */
	__u32 tid; /* 0 for all threads */
	__u32 stacks; /* 0 to write headers only */
	__u32 changed_only; /* for threads that have not run since their last copy, write only the header */
	__u32 groups; /* number of groups of threads; each snapshot copies one group completely; at least 1 */
	__u32 group; /* the group that this snapshot copies completely */
	__u64 budget; /* bytes of stack left for complete copies */
};

/* State of a thread when it was last copied completely while it was off the CPU. */
struct copied {
	__u64 start; /* start time of the thread (CLOCK_BOOTTIME), to detect a reused thread id */
	__u64 switches;
};

/*
 * The key is the thread id. User space sets the number of entries to at least twice the number of threads. An
 * LRU map with fewer entries than live threads would evict each entry before its thread is visited again. Ids
 * of exited threads are never looked up, so they are evicted first.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct copied);
} copied_at_rest SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* The record is too large for the BPF stack. One buffer is enough, because user space holds a lock during a
 * snapshot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} scratch SEC(".maps");

/* Set before loading. If it is false, the verifier removes the code that depends on it. */
const volatile _Bool with_kernel_stack = 0;

/* Return the nesting level of the task's pid namespace; 0 for the host's. */
static __always_inline __u32 namespace_level(struct task_struct *task)
{
	return BPF_CORE_READ(task, thread_pid, level);
}

/* Return the task's id in the namespace at this level, or in its own namespace if that is less deeply
 * nested. */
static __always_inline __u32 thread_id_at(struct task_struct *task, __u32 level)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	struct upid found = {};
	__u32 own_level = BPF_CORE_READ(pid, level);

	bpf_core_read(&found, sizeof(found), &pid->numbers[0]);
	if (level > own_level)
		level = own_level;
	if (level > 0) {
		/* numbers[] is a flexible array; its element size depends on the running kernel */
		__u64 size = bpf_core_type_size(struct upid);
		const char *first = (const char *)__builtin_preserve_access_index(&pid->numbers[0]);

		bpf_probe_read_kernel(&found.nr, sizeof(found.nr), first + level * size);
	}
	return found.nr;
}

/* Return the thread's CPU time in ns plus the number of times that it was scheduled on a CPU. The sum changes
 * whenever the thread runs. /proc/PID/task/TID/schedstat, which is cheap to read, has both numbers. */
static __always_inline __u64 run_count(struct task_struct *task)
{
	__u64 count = BPF_CORE_READ(task, se.sum_exec_runtime);

	if (bpf_core_field_exists(task->sched_info.pcount))
		count += BPF_CORE_READ(task, sched_info.pcount);
	return count;
}

static void read_registers(struct task_struct *task, struct record_header *header)
{
	struct pt_regs *regs = saved_registers(task);

	header->ip = REGISTER_IP(regs);
	header->sp = REGISTER_SP(regs);
	header->bp = REGISTER_BP(regs);
	header->lr = REGISTER_LR(regs);
	header->syscall = REGISTER_SYSCALL(regs);
	header->arg0 = REGISTER_ARG0(regs);
}

/*
 * Copy the stack from the stack pointer upward and return the number of bytes. The C library keeps a
 * thread's descriptor at the end of its stack. The thread pointer points to the descriptor (x86-64), or to
 * its end (arm64; the copy then includes the descriptor, about 2 KB). If the distance fits into a record, one
 * call copies all of it. Otherwise copy page by page up to the end of the mapping.
 */
static __always_inline __u64 copy_stack(struct task_struct *task, struct record *record)
{
	__u64 sp = record->header.sp;
	__u64 above = THREAD_POINTER(task) - sp;
	__u64 copied = PAGE_BYTES - (sp & (PAGE_BYTES - 1));

	if (record->header.copy == COPY_SHALLOW) {
		if (above <= MAX_PAGES * PAGE_BYTES)
			copied = above;
		if (copied > SHALLOW_BYTES)
			copied = SHALLOW_BYTES;
		return bpf_copy_from_user_task(record->stack, copied, (void *)sp, task, 0) ? 0 : copied;
	}
	if (above <= MAX_PAGES * PAGE_BYTES &&
	    !bpf_copy_from_user_task(record->stack, above & STACK_MASK, (void *)sp, task, 0))
		return above;
	if (bpf_copy_from_user_task(record->stack, copied, (void *)sp, task, 0))
		return 0;
	for (int i = 1; i < MAX_PAGES; i++) {
		if (bpf_copy_from_user_task(&record->stack[copied], PAGE_BYTES, (void *)(sp + copied), task,
					    0))
			break;
		copied += PAGE_BYTES;
	}
	return copied;
}

/* Return how many bytes user space has to copy, from the stack pointer upward; see copy_stack(). */
static __always_inline __u64 stack_to_copy(struct task_struct *task, const struct record_header *header)
{
	__u64 above = THREAD_POINTER(task) - header->sp;
	__u64 limit = header->copy == COPY_SHALLOW ? SHALLOW_BYTES : MAX_PAGES * PAGE_BYTES;

	return above < limit ? above : limit;
}

/* Return true if the thread was off the CPU during the whole copy. */
static _Bool at_rest(const struct record_header *header)
{
	return !header->on_cpu_before && !header->on_cpu_after &&
	       header->switches_before == header->switches_after;
}

/* Return true if the thread has not run since its last copy. If the counters are equal, it was not switched
 * out in between; because it is off the CPU, it was not switched in either. */
static _Bool has_not_run(struct task_struct *task, struct record_header *header)
{
	struct copied *before = bpf_map_lookup_elem(&copied_at_rest, &header->tid);

	header->on_cpu_after = is_on_cpu(task);
	header->switches_after = context_switches(task);
	return before && at_rest(header) && before->switches == header->switches_before &&
	       before->start == BPF_CORE_READ(task, start_boottime);
}

static __always_inline int visit(struct bpf_iter__task *ctx, const _Bool sleepable)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	__u32 zero = 0;

	if (!task)
		return 0;

	struct config *wanted = bpf_map_lookup_elem(&config, &zero);
	struct record *record = bpf_map_lookup_elem(&scratch, &zero);

	if (!wanted || !record)
		return 0;

	__u32 reader_level = namespace_level((struct task_struct *)bpf_get_current_task());
	__u32 tid = thread_id_at(task, reader_level);

	if (wanted->tgid && thread_id_at(BPF_CORE_READ(task, group_leader), reader_level) != wanted->tgid)
		return 0;
	if (wanted->tid && tid != wanted->tid)
		return 0;

	struct record_header *header = &record->header;

	__builtin_memset(header, 0, sizeof(*header));
	header->tid = tid;
	if (task->flags & (PF_EXITING | PF_IO_WORKER | PF_KTHREAD)) {
		header->copy = COPY_NONE;
		bpf_seq_write(seq, header, sizeof(*header));
		return 0;
	}
	header->ns_tid = thread_id_at(task, namespace_level(task));
	bpf_probe_read_kernel_str(header->comm, sizeof(header->comm), task->comm);

	header->switches_before = context_switches(task);
	header->on_cpu_before = is_on_cpu(task);
	header->state = task_state(task);
	header->ran = run_count(task);
	read_registers(task, header);

	if (wanted->changed_only && has_not_run(task, header)) {
		header->copy = COPY_UNCHANGED;
		bpf_seq_write(seq, header, sizeof(*header));
		return 0;
	}

	if (wanted->budget < MAX_PAGES * PAGE_BYTES || task->pid % (wanted->groups ?: 1) != wanted->group)
		header->copy = COPY_SHALLOW;
	header->returns_len = copy_replaced_returns(task, record->returns);

	__u64 copied = 0;

	if (wanted->stacks) {
		if (sleepable)
			copied = copy_stack(task, record);
		else
			header->stack_wanted = stack_to_copy(task, header);
	}

	if (with_kernel_stack) {
		long bytes = bpf_get_task_stack(task, record->kernel, MAX_KERNEL_FRAMES * 8, 0);

		header->kernel_len = bytes > 0 ? bytes : 0;
	}
	header->on_cpu_after = is_on_cpu(task);
	header->switches_after = context_switches(task);

	__u64 length = copied & STACK_MASK;

	header->stack_len = length;

	/* If a record does not fit into the buffer, the next read() visits the thread again, so remember the
	 * thread only if everything was written. */
	long failed = bpf_seq_write(seq, header, sizeof(*header));

	if (length)
		failed |= bpf_seq_write(seq, record->stack, length);
	if (with_kernel_stack) {
		length = header->kernel_len & KERNEL_MASK;
		if (length)
			failed |= bpf_seq_write(seq, record->kernel, length);
	}
	length = header->returns_len & RETURNS_MASK;
	if (length)
		failed |= bpf_seq_write(seq, record->returns, length);
	if (failed || header->copy != COPY_WHOLE)
		return 0;
	wanted->budget -= header->stack_len + header->stack_wanted;
	if (wanted->stacks && at_rest(header)) {
		struct copied now = {.start = BPF_CORE_READ(task, start_boottime),
				     .switches = header->switches_before};

		bpf_map_update_elem(&copied_at_rest, &header->tid, &now, 0);
	}
	return 0;
}

SEC("iter.s/task")
int snapshot(struct bpf_iter__task *ctx)
{
	return visit(ctx, 1);
}

SEC("iter/task")
int snapshot_nosleep(struct bpf_iter__task *ctx)
{
	return visit(ctx, 0);
}
