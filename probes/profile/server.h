/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/* Definitions shared by the programs for on-CPU and off-CPU profiles: the process, the ring buffer for
 * samples, and the count of lost records. */

/* Length of the clock ticks in /proc/PID/stat (USER_HZ), which does not depend on the kernel's CONFIG_HZ. */
#define NS_PER_TICK 10000000

/* Set before loading, with the layout of constants() in samples/programs.rs. */
const volatile struct {
	__u32 tgid;
	__u32 with_kernel_stack; /* if it is 0, the verifier removes the code that depends on it */
	__u64 start; /* start time in clock ticks since boot, to detect a reused pid */
} server = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20); /* set before loading */
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* Return true if a task with this `tgid` and these `flags` is a thread of the server. */
static __always_inline int is_server(__u32 tgid, __u32 flags)
{
	return tgid == server.tgid && !(flags & (PF_IO_WORKER | PF_KTHREAD));
}

static __always_inline int is_same_process(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_boottime) / NS_PER_TICK == server.start;
}

static __always_inline void count_lost(void)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&lost, &zero);

	if (value)
		__sync_fetch_and_add(value, 1);
}
