/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Trace one function on demand: the number of its calls, their duration, the values of one argument, and the
 * stacks of some calls. Everything except the stacks is aggregated here: no other event is sent to user
 * space, regardless of how often the function is called.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arguments.h"
#include "bits.h"
#include "sample.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAP_PERCPU_HASH 5
#define MAP_PERCPU_ARRAY 6
#define MAP_LRU_HASH 9
#define NO_ARGUMENT 0xffffffff
/* Number of histogram buckets, one per power of two in ns. The last one begins at 2^39 ns (9 minutes). */
#define BUCKETS 40

/* Set before loading; constants() in trace.rs has the same layout. The verifier removes code that is not
 * needed. */
const volatile struct {
	__u32 argument; /* the argument's index from 0, or NO_ARGUMENT */
	__u32 bits; /* the argument's width */
	__u32 timed;
	__u32 callers;
} wanted = {};

enum counter {
	HITS, /* all hits; each one costs time, even while calls are not counted */
	CALLS,
	OTHER_VALUES, /* values for which the map had no room */
	STACKS_HELD_BACK, /* stacks not captured because of the limit per interval */
	STACKS_LOST, /* stacks lost because the ring was full */
	COUNTERS,
};

/* Written by user space while the program runs; trace/session.py has the same layout. */
struct control {
	__u64 tgid; /* the process to trace: a uprobe is set on a file, and other servers may run the same
		       file */
	__u64 since; /* start of counting; calls that began earlier are ignored, since their return may have
			been missed */
	__u64 open; /* not 0 while calls are counted */
	__u64 every; /* capture the stack of one call in `every`; 0 for none */
	__u64 stretch_ns; /* length of the interval in which the number of stacks is limited */
	__u64 most; /* maximum number of stacks per interval */
	__u64 kind; /* the kind of the samples, by which the reader distinguishes them */
};

struct latency {
	__u64 total_ns;
	__u64 buckets[BUCKETS];
};

/* Calls until the next stack is captured, calls left in the round after that, and calls since the last stack.
 */
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

/* Start time of each thread's call. A thread that exits during a call leaves its entry behind; because the
 * map is LRU, such entries never fill it. */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} begun SEC(".maps");

/* Up to 4,096 distinct values are counted individually. In value_octaves, all values are counted in
 * power-of-two ranges: 0, [1, 2), [2, 4) ... */
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

/* Return the control block if the current process is the traced server, otherwise NULL. */
static __always_inline struct control *here(void)
{
	__u32 zero = 0;
	struct control *found = bpf_map_lookup_elem(&control, &zero);

	return found && bpf_get_current_pid_tgid() >> 32 == found->tgid ? found : 0;
}

/* Count a value. The upper bits of a narrow argument are undefined, so they are masked. */
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
 * Return 1 if the stack of this call will be captured. One call of each round of `every` calls is chosen, at
 * a new random position in each round, so that callers that alternate regularly are all sampled.
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

/* Return 1 unless the limit of this interval is reached. Without this limit, a sudden rise in the rate of
 * calls would exceed the budget until user space adjusts `every`. */
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

/* Capture the stack if this call is chosen. Its weight is the number of calls since the previous stack, so
 * that the weights add up to the number of calls. */
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
		note(argument(ctx, wanted.argument));
	if (wanted.callers)
		take_stack(ctx, control);
	if (wanted.timed) { /* last, so that the time spent above is not added to the function's duration */
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
