/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Measure where the server's threads spend their time while they are not running, using the events of the
 * scheduler.
 *
 * Times are exact for each thread: running, blocked, and runnable (woken or preempted, but without a CPU).
 * The stack is captured for one wait in `every`. The choice is made at random before the wait begins, so the
 * estimate is unbiased and the cost is bounded at any rate of waits. At the end of a wait its duration is
 * sent if its stack was captured or if the wait was long.
 *
 * The kernel skips these programs for some events, for instance if they would recurse. Therefore an event
 * proves the state of a thread only from that time on. The time that the thread ran comes from the
 * scheduler's own accounting (se.sum_exec_runtime), which is up to date if a thread is off the CPU or about
 * to leave it. The context switch counters show whether an event was missed.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "sample.h"
#include "server.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define TASK_DEAD 0x80
/* Length of the window in which a thread's rate of waits is measured: 134 ms. */
#define WINDOW_NS (1ULL << 27)
/* Every wait of at least this duration is reported when it ends. */
#define LONG_NS 10000000ULL
#define BPF_NOEXIST 1

/* The values must match those in samples/record.rs. */
enum kind { WAIT_BEGINS = 256, WAIT_ENDS = 257, THREAD_ENDS = 258 };
enum mode { RUNNING = 1, BLOCKED = 2, RUNNABLE = 3 };

struct wait_end {
	__u32 tid;
	__u32 kind;
	__u64 switches; /* the thread's context switches when the wait began, which identify the wait */
	__u64 blocked_ns;
	__u64 runnable_ns;
	__u64 every; /* `every` if the stack of this wait was captured, otherwise 0 */
};

/* samples/record.rs reads these words. */
struct thread {
	__u64 mode;
	__u64 since; /* the time up to which the durations below are complete, ns of CLOCK_MONOTONIC */
	__u64 running_ns;
	__u64 blocked_ns;
	__u64 runnable_ns;
	__u64 wait_blocked_ns; /* blocked time of the current wait */
	__u64 wait_runnable_ns;
	__u64 switches; /* context switches at the last event, which identify the current wait */
	__u64 taken; /* `every` if the stack of the current wait was captured, otherwise 0 */
	__u64 every; /* the stack of one wait in `every` is captured in this window */
	__u64 window; /* start of the window, ns of CLOCK_MONOTONIC */
	__u64 count; /* waits in this window */
	__u64 cpu_ns; /* se.sum_exec_runtime at the last event */
	__u64 voluntary; /* nvcsw at the last event */
	__u64 statement; /* start of the sampled statement, ns of CLOCK_MONOTONIC; 0 if there is none */
	__u64 statement_sp; /* the stack pointer when it began */
	__u64 statement_blocked; /* blocked_ns when it began */
	__u64 statement_runnable;
	__u64 statement_thd; /* the connection's THD until the text of its prepared statement is known, else 0
			      */
};

struct thread_end {
	__u32 tid;
	__u32 kind;
	__u64 at;
	struct thread thread;
	char comm[16];
};

/* Where a function receives a value: the number of the argument, and, if the argument is a pointer to the
 * structure that contains the value, the offset in this structure, otherwise DIRECT. */
struct argument_place {
	__u64 number;
	__u64 offset;
};

struct config {
	__u64 began; /* 0: ignore all events; in the future: follow the threads, but do not count yet */
	__u64 ended; /* 0: not set yet */
	__u64 most; /* approximate maximum number of stacks per thread and window */
	__u64 statements; /* sample one statement in `statements`, and only its waits; 0: sample all waits */
	struct argument_place command, text, length, thd,
		prepared; /* arguments of the function that executes a command */
	__u64 thd_connection, thd_text, thd_length; /* offsets in a THD; DIRECT if they are unknown */
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

/* Return the thread's record. If the thread was created after all others were registered, create its record.
 */
static __always_inline struct thread *record_of(struct task_struct *task)
{
	__u32 tid = task->pid;
	struct thread *known = bpf_map_lookup_elem(&threads, &tid);
	struct thread fresh = {.mode = RUNNABLE, .since = task->start_time, .every = 1};

	if (known)
		return known;
	if (!is_same_process(task))
		return 0;
	bpf_map_update_elem(&threads, &tid, &fresh, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&threads, &tid);
	if (!known)
		count_lost();
	return known;
}

/*
 * Account for the time since the thread's last event. The running time is taken from the scheduler's
 * accounting. If the thread is `still_running`, the running time is the whole interval, because the
 * scheduler's value may then be a clock tick old. During the rest of an interval in which the thread ran, its
 * CPU handled interrupts or ran another virtual machine; this time counts as runnable.
 */
static __always_inline void account(struct thread *thread, struct task_struct *task, struct config *wanted,
				    __u64 now, int still_running)
{
	__u64 from = thread->since > wanted->began ? thread->since : wanted->began;
	__u64 elapsed = now > from ? now - from : 0;
	__u64 cpu_ns = task->se.sum_exec_runtime;
	__u64 ran = cpu_ns - thread->cpu_ns;
	__u64 off;

	if (still_running || ran > elapsed)
		ran = elapsed;
	off = elapsed - ran;
	thread->running_ns += ran;
	if (thread->mode == BLOCKED) {
		thread->blocked_ns += off;
		thread->wait_blocked_ns += off;
	} else {
		thread->runnable_ns += off;
		thread->wait_runnable_ns += off;
	}
	if (now > thread->since)
		thread->since = now;
	thread->cpu_ns = cpu_ns;
	thread->voluntary = task->nvcsw;
}

static __always_inline void wait_begins(struct thread *thread, __u64 mode, __u64 switches)
{
	thread->mode = mode;
	thread->switches = switches;
	thread->wait_blocked_ns = 0;
	thread->wait_runnable_ns = 0;
	thread->taken = 0;
}

/*
 * Correct the mode of a thread that left the CPU without an event being delivered. `own` is 1 if the event
 * itself is a switch away from the CPU, which the counters already include.
 */
static __always_inline void find_missing_wait(struct thread *thread, struct task_struct *task, __u64 own)
{
	__u64 switches = context_switches(task) - own;

	if (thread->mode == RUNNING && switches != thread->switches)
		wait_begins(thread, task->nvcsw != thread->voluntary ? BLOCKED : RUNNABLE, switches);
}

/* Return 1 if the thread's waits are sampled. */
static __always_inline int is_followed(struct thread *thread, struct config *wanted)
{
	return !wanted->statements || thread->statement;
}

static __always_inline void wait_ends(struct thread *thread, struct task_struct *task, struct config *wanted)
{
	struct wait_end *end;

	thread->mode = RUNNING;
	if (!thread->taken &&
	    (thread->wait_blocked_ns + thread->wait_runnable_ns < LONG_NS || !is_followed(thread, wanted)))
		return;
	end = bpf_ringbuf_reserve(&samples, sizeof(*end), 0);
	if (!end) {
		count_lost();
		return;
	}
	end->tid = task->pid;
	end->kind = WAIT_ENDS;
	end->switches = thread->switches;
	end->blocked_ns = thread->wait_blocked_ns;
	end->runnable_ns = thread->wait_runnable_ns;
	end->every = thread->taken;
	bpf_ringbuf_submit(end, SAMPLE_NO_WAKEUP);
}

/* Return 1 if the stack of the wait that is beginning will be captured. The choice is random, and does not
 * depend on how long this wait takes. */
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
		thread->every *= 2; /* the thread waits more often than it did in the last window */
	return thread->every == 1 || bpf_get_prandom_u32() % (__u32)thread->every == 0;
}

static __always_inline void thread_ends(struct task_struct *task, struct thread *thread,
					struct config *wanted, __u64 now)
{
	struct thread_end *end;
	__u32 tid = task->pid;

	if (now < wanted->began) {
		bpf_map_delete_elem(&threads, &tid);
		return;
	}
	end = bpf_ringbuf_reserve(&samples, sizeof(*end), 0);
	if (end) {
		end->tid = tid;
		end->kind = THREAD_ENDS;
		end->at = now;
		end->thread = *thread;
		bpf_probe_read_kernel_str(end->comm, sizeof(end->comm), task->comm);
		bpf_ringbuf_submit(end, SAMPLE_NO_WAKEUP);
	} else {
		count_lost();
	}
	bpf_map_delete_elem(&threads, &tid);
}

static __always_inline void send_prepared_text(struct thread *thread, struct task_struct *task,
					       struct config *wanted);

static __always_inline void leaves(void *ctx, struct task_struct *task, struct config *wanted, int preempted,
				   __u64 now)
{
	struct thread *thread = record_of(task);
	__u64 state = task_state(task);

	if (!thread)
		return;
	find_missing_wait(thread, task, 1);
	account(thread, task, wanted, now, 0);
	if (thread->mode != RUNNING)
		wait_ends(thread, task, wanted);
	if (state & TASK_DEAD) {
		thread_ends(task, thread, wanted, now);
		return;
	}
	wait_begins(thread, preempted || !state ? RUNNABLE : BLOCKED, context_switches(task));
	if (thread->statement && thread->statement_thd)
		send_prepared_text(thread, task, wanted);
	if (!is_followed(thread, wanted) || !is_chosen(thread, wanted->most, now))
		return;
	if (sample_take(ctx, &samples, task, saved_registers(task), WAIT_BEGINS, thread->switches,
			server.with_kernel_stack))
		count_lost();
	else
		thread->taken = thread->every;
}

static __always_inline void is_woken(struct task_struct *task, struct config *wanted, __u64 now)
{
	struct thread *thread = record_of(task);

	if (!thread)
		return;
	find_missing_wait(thread, task, 0);
	if (thread->mode != BLOCKED)
		return;
	account(thread, task, wanted, now, 0);
	thread->mode = RUNNABLE;
}

static __always_inline void arrives(struct task_struct *task, struct config *wanted, __u64 now)
{
	struct thread *thread = record_of(task);

	if (!thread)
		return;
	find_missing_wait(thread, task, 0);
	account(thread, task, wanted, now, 0);
	wait_ends(thread, task, wanted);
}

static __always_inline struct config *active(__u64 now)
{
	__u32 zero = 0;
	struct config *wanted = bpf_map_lookup_elem(&config, &zero);

	if (!wanted || !wanted->began || (wanted->ended && now > wanted->ended))
		return 0;
	return wanted;
}

#include "statements.h"

SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	struct task_struct *previous = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	int out = is_server(previous->tgid, previous->flags), in = is_server(next->tgid, next->flags);
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
	struct config *wanted;
	__u64 now;

	if (!is_server(task->tgid, task->flags))
		return 0;
	now = bpf_ktime_get_ns();
	wanted = active(now);
	if (wanted)
		is_woken(task, wanted, now);
	return 0;
}

/*
 * Register a thread in its current state. The programs above already follow the threads. If one of them has
 * already created the record, that record is not changed.
 */
static __always_inline void register_thread(struct task_struct *task)
{
	__u32 tid = task->pid;
	struct thread fresh = {.every = 1, .since = bpf_ktime_get_ns()};

	fresh.mode = is_on_cpu(task) ? RUNNING : task_state(task) ? BLOCKED : RUNNABLE;
	fresh.switches = context_switches(task);
	fresh.voluntary = task->nvcsw;
	fresh.cpu_ns = task->se.sum_exec_runtime;
	bpf_map_update_elem(&threads, &tid, &fresh, BPF_NOEXIST);
	if (!bpf_map_lookup_elem(&threads, &tid))
		count_lost();
}

/* Account for a thread's time up to the end of the profile. After that, the programs above ignore all events.
 */
static __always_inline void close_thread(struct task_struct *task, struct config *wanted)
{
	struct thread *thread = record_of(task);

	if (!thread)
		return;
	find_missing_wait(thread, task, 0);
	account(thread, task, wanted, wanted->ended, thread->mode == RUNNING && is_on_cpu(task));
}

/* Runs twice for each thread: before the start and after the end of the profile. */
SEC("iter/task")
int on_visit(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 zero = 0;
	struct config *wanted = bpf_map_lookup_elem(&config, &zero);

	if (!task || !wanted || !is_server(task->tgid, task->flags) || !is_same_process(task))
		return 0;
	if (wanted->ended)
		close_thread(task, wanted);
	else
		register_thread(task);
	return 0;
}
