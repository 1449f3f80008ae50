/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Where the threads of the server are when they do not run, from the scheduler's own events.
 *
 * Times are exact, for each thread: running, blocked, runnable (woken or preempted, and no CPU yet). Stacks
 * are not taken of each wait but of one in `every`, drawn by lot before the wait begins, so that what is told
 * of them is an unbiased estimate and the cost is bounded at any rate. How long a wait took whose stack was
 * taken follows when it ends; so it does for each long wait.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "sample.h"
#include "server.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define TASK_DEAD 0x80
/* How often the rate of a thread's waits is looked at. */
#define WINDOW_NS (1ULL << 27)
/* Each wait that lasts longer is told. */
#define LONG_NS 10000000ULL

/* samples/record.rs mirrors these. */
enum kind { WAIT_BEGINS = 256, WAIT_ENDS = 257, THREAD_ENDS = 258 };
enum mode { RUNNING = 1, BLOCKED = 2, RUNNABLE = 3 };

struct wait_end {
	__u32 tid;
	__u32 kind;
	__u64 switches; /* the thread's context switches when the wait began: which wait it was */
	__u64 blocked_ns;
	__u64 runnable_ns;
	__u64 every; /* one in so many stacks was taken; 0 when this one's was not */
};

/* samples/threads.rs reads these words. */
struct thread {
	__u64 mode;
	__u64 since; /* in this mode, ns of CLOCK_MONOTONIC */
	__u64 born; /* seen from then on */
	__u64 running_ns;
	__u64 blocked_ns;
	__u64 runnable_ns;
	__u64 waited_ns; /* blocked in the wait that it has not come back from */
	__u64 switches;
	__u64 taken; /* the stack of this wait was */
	__u64 every;
	__u64 window;
	__u64 count; /* waits in this window */
};

struct thread_end {
	__u32 tid;
	__u32 kind;
	__u64 at;
	struct thread thread;
	char comm[16];
};

struct config {
	__u64 began; /* 0: not yet */
	__u64 ended; /* 0: not yet */
	__u64 most; /* stacks of a thread in a window */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set before loading */
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

/* The thread's record. One that is new has been in this mode since the beginning, its own or ours. */
static __always_inline struct thread *record_of(struct task_struct *task, struct config *wanted, __u64 mode)
{
	__u32 tid = task->pid;
	struct thread *known = bpf_map_lookup_elem(&threads, &tid);
	struct thread fresh = {};

	if (known)
		return known;
	if (!is_same_process(task))
		return 0;
	fresh.mode = mode;
	fresh.since = task->start_time > wanted->began ? task->start_time : wanted->began;
	fresh.born = fresh.since;
	fresh.switches = context_switches(task);
	fresh.every = 1;
	if (bpf_map_update_elem(&threads, &tid, &fresh, 0))
		count_lost();
	return bpf_map_lookup_elem(&threads, &tid);
}

/* Whether the stack of the wait that begins now is taken. Depends on nothing but what was before it. */
static __always_inline int is_chosen(struct thread *thread, __u64 most, __u64 now)
{
	if (now - thread->window >= WINDOW_NS) {
		thread->every = most ? (thread->count + most - 1) / most : 1;
		thread->window = now;
		thread->count = 0;
	}
	if (!thread->every)
		thread->every = 1;
	thread->count++;
	if (thread->count > 2 * thread->every * most)
		thread->every *= 2; /* a burst, within the window */
	return thread->every == 1 || bpf_get_prandom_u32() % (__u32)thread->every == 0;
}

static __always_inline void thread_ends(struct task_struct *task, struct thread *thread, __u64 now)
{
	struct thread_end *end = bpf_ringbuf_reserve(&samples, sizeof(*end), 0);
	__u32 tid = task->pid;

	if (end) {
		end->tid = tid;
		end->kind = THREAD_ENDS;
		end->at = now;
		end->thread = *thread;
		bpf_probe_read_kernel_str(end->comm, sizeof(end->comm), task->comm);
		bpf_ringbuf_submit(end, SAMPLE_IN_TURN);
	} else {
		count_lost();
	}
	bpf_map_delete_elem(&threads, &tid);
}

static __always_inline void leaves(void *ctx, struct task_struct *task, struct config *wanted, int preempted,
				   __u64 now)
{
	struct thread *thread = record_of(task, wanted, RUNNING);
	__u64 state = task->__state;

	if (!thread)
		return;
	thread->running_ns += now - thread->since;
	thread->since = now;
	if (state & TASK_DEAD) {
		thread_ends(task, thread, now);
		return;
	}
	thread->mode = preempted || !state ? RUNNABLE : BLOCKED;
	thread->switches = context_switches(task);
	thread->waited_ns = 0;
	thread->taken = 0;
	if (!is_chosen(thread, wanted->most, now))
		return;
	if (sample_take(ctx, &samples, task, (struct pt_regs *)bpf_task_pt_regs(task), WAIT_BEGINS,
			thread->switches, server.with_kernel_stack))
		count_lost();
	else
		thread->taken = thread->every;
}

static __always_inline void is_woken(struct thread *thread, __u64 now)
{
	thread->waited_ns = now - thread->since;
	thread->blocked_ns += thread->waited_ns;
	thread->since = now;
	thread->mode = RUNNABLE;
}

static __always_inline void arrives(struct task_struct *task, struct config *wanted, __u64 now)
{
	struct thread *thread = record_of(task, wanted, RUNNABLE);
	struct wait_end *end;
	__u64 runnable;

	if (!thread)
		return;
	if (thread->mode == BLOCKED)
		is_woken(thread, now);
	runnable = now - thread->since;
	thread->runnable_ns += runnable;
	thread->since = now;
	thread->mode = RUNNING;
	if (!thread->taken && thread->waited_ns + runnable < LONG_NS)
		return;
	end = bpf_ringbuf_reserve(&samples, sizeof(*end), 0);
	if (!end) {
		count_lost();
		return;
	}
	end->tid = task->pid;
	end->kind = WAIT_ENDS;
	end->switches = thread->switches;
	end->blocked_ns = thread->waited_ns;
	end->runnable_ns = runnable;
	end->every = thread->taken;
	bpf_ringbuf_submit(end, SAMPLE_IN_TURN);
}

static __always_inline struct config *active(__u64 now)
{
	__u32 zero = 0;
	struct config *wanted = bpf_map_lookup_elem(&config, &zero);

	if (!wanted || !wanted->began || now < wanted->began || (wanted->ended && now > wanted->ended))
		return 0;
	return wanted;
}

SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	struct task_struct *previous = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	int out = is_server(previous), in = is_server(next);
	struct config *wanted;
	__u64 now;

	if (!out && !in)
		return 0;
	now = bpf_ktime_get_ns();
	wanted = active(now);
	if (!wanted)
		return 0;
	if (out)
		leaves(ctx, previous, wanted, ctx[0] & 1, now);
	if (in)
		arrives(next, wanted, now);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct thread *thread;
	struct config *wanted;
	__u64 now;

	if (!is_server(task))
		return 0;
	now = bpf_ktime_get_ns();
	wanted = active(now);
	if (!wanted)
		return 0;
	thread = record_of(task, wanted, BLOCKED);
	if (thread && thread->mode == BLOCKED)
		is_woken(thread, now);
	return 0;
}
