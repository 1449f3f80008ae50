/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * One function, on demand: its calls, how long they take, the values of one argument, and of some calls the
 * stack. All but the stacks is added up here: no event leaves the kernel, however busy the function is.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "bits.h"
#include "sample.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAP_PERCPU_HASH 5
#define MAP_PERCPU_ARRAY 6
#define MAP_LRU_HASH 9
#define NO_ARGUMENT 0xffffffff
/* Octaves of nanoseconds: the last one begins at 2^39, nine minutes. */
#define BUCKETS 40

/* Set before loading; trace.rs mirrors it. What is not wanted the verifier drops. */
const volatile struct {
	__u32 argument; /* from 0, or NO_ARGUMENT */
	__u32 bits; /* its width */
	__u32 timed;
	__u32 callers;
} wanted = {};

enum counter {
	HITS, /* also of a function that does not count at the moment: each costs */
	CALLS,
	OTHER_VALUES, /* that found no room */
	STACKS_HELD_BACK, /* in a burst */
	STACKS_LOST, /* the ring was full */
	COUNTERS,
};

/* Written from outside while it runs; trace/session.py mirrors it. */
struct control {
	__u64 tgid; /* uprobes belong to a file: other servers may run the same one */
	__u64 since; /* calls that began before are none: they may have ended unseen */
	__u64 open; /* whether calls count */
	__u64 every; /* one stack of so many calls; 0: none */
	__u64 stretch_ns; /* and in each stretch of time ... */
	__u64 most; /* ... at most so many */
	__u64 kind; /* what the reader tells them apart by */
};

struct latency {
	__u64 total_ns;
	__u64 buckets[BUCKETS];
};

/* Calls until the next stack, what is left of its round then, and calls since the last stack. */
struct turn {
	__u64 left;
	__u64 rest;
	__u64 since;
};

struct stretch {
	__u64 number;
	__u64 taken;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latency);
} latencies SEC(".maps");

/* When each thread's call began. A thread that ended in one leaves its entry; LRU so that such never fill it.
 */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} begun SEC(".maps");

/* Counted one by one up to so many different ones, and all of them by powers of two: 0, then [1, 2), [2, 4)
 * ... */
struct {
	__uint(type, MAP_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} values SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 65);
	__type(key, __u32);
	__type(value, __u64);
} value_octaves SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turn);
} turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stretch);
} stretches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} samples SEC(".maps");

static __always_inline void add(void *map, __u32 index)
{
	__u64 *value = bpf_map_lookup_elem(map, &index);

	if (value)
		__sync_fetch_and_add(value, 1);
}

/* What runs for this server; NULL elsewhere. */
static __always_inline struct control *here(void)
{
	__u32 zero = 0;
	struct control *found = bpf_map_lookup_elem(&control, &zero);

	return found && bpf_get_current_pid_tgid() >> 32 == found->tgid ? found : 0;
}

#ifdef __TARGET_ARCH_x86
struct pt_regs___arguments {
	unsigned long di, si, dx, cx, r8, r9;
} __attribute__((preserve_access_index));

static __always_inline __u64 argument(struct pt_regs *ctx)
{
	struct pt_regs___arguments *regs = (void *)ctx;

	switch (wanted.argument) {
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
static __always_inline __u64 argument(struct pt_regs *ctx)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (__u64 *)ctx + wanted.argument);
	return value;
}
#endif

/* The upper bits of a narrow argument are whatever was there before. */
static __always_inline void note(__u64 value)
{
	__u64 one = 1, *count;

	if (wanted.bits < 64)
		value &= (1ULL << wanted.bits) - 1;
	add(&value_octaves, value ? 1 + highest_bit(value) : 0);
	count = bpf_map_lookup_elem(&values, &value);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&values, &value, &one, 0))
		add(&counters, OTHER_VALUES);
}

/*
 * Whether this call's stack is taken: one of each round of `every` calls, at a place in it that is drawn
 * anew, so that callers who come in turn are all met.
 */
static __always_inline int is_its_turn(struct turn *turn, __u64 every)
{
	__u64 place;

	turn->since++;
	if (turn->left > 1 && turn->left < 2 * every) {
		turn->left--;
		return 0;
	}
	place = bpf_get_prandom_u32() % every;
	turn->left = turn->rest + place + 1;
	turn->rest = every - 1 - place;
	return 1;
}

/* A rate that rises between two looks at it must not take more than was agreed. */
static __always_inline int has_room(struct control *control)
{
	__u32 zero = 0;
	struct stretch *stretch = bpf_map_lookup_elem(&stretches, &zero);
	__u64 number;

	if (!stretch || !control->stretch_ns)
		return 0;
	number = bpf_ktime_get_ns() / control->stretch_ns;
	if (stretch->number != number) {
		stretch->number = number;
		stretch->taken = 0;
	}
	if (stretch->taken >= control->most)
		return 0;
	__sync_fetch_and_add(&stretch->taken, 1);
	return 1;
}

/* A stack stands for all calls since the one before it, so that they add up to the calls that there were. */
static __always_inline void take_stack(struct pt_regs *ctx, struct control *control)
{
	__u32 zero = 0;
	struct turn *turn = bpf_map_lookup_elem(&turns, &zero);

	if (!turn || !control->every || !is_its_turn(turn, control->every))
		return;
	if (!has_room(control))
		add(&counters, STACKS_HELD_BACK);
	else if (sample_take(ctx, &samples, bpf_get_current_task_btf(), ctx, control->kind, turn->since, 0))
		add(&counters, STACKS_LOST);
	else
		turn->since = 0;
}

SEC("uprobe")
int trace_enter(struct pt_regs *ctx)
{
	struct control *control = here();
	__u32 tid = bpf_get_current_pid_tgid();
	__u64 now;

	if (!control)
		return 0;
	add(&counters, HITS);
	if (!control->open)
		return 0;
	add(&counters, CALLS);
	if (wanted.argument != NO_ARGUMENT)
		note(argument(ctx));
	if (wanted.callers)
		take_stack(ctx, control);
	if (wanted.timed) { /* the last: what we take ourselves is not the function's */
		now = bpf_ktime_get_ns();
		bpf_map_update_elem(&begun, &tid, &now, 0);
	}
	return 0;
}

SEC("uprobe")
int trace_leave(struct pt_regs *ctx)
{
	struct control *control = here();
	__u32 tid = bpf_get_current_pid_tgid(), zero = 0, octave;
	__u64 now = bpf_ktime_get_ns(), took, *began;
	struct latency *latency;

	if (!control)
		return 0;
	began = bpf_map_lookup_elem(&begun, &tid);
	latency = bpf_map_lookup_elem(&latencies, &zero);
	if (!began || !latency)
		return 0;
	if (*began >= control->since) {
		took = now - *began;
		octave = highest_bit(took);
		__sync_fetch_and_add(&latency->total_ns, took);
		__sync_fetch_and_add(&latency->buckets[octave < BUCKETS ? octave : BUCKETS - 1], 1);
	}
	bpf_map_delete_elem(&begun, &tid);
	return 0;
}
