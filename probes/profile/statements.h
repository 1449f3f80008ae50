/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/*
 * Sample statements at the entry and the return of the function that executes a command. Included by
 * offcpu.bpf.c, whose programs follow the waits of the threads that are executing a sampled statement.
 *
 * Statements are chosen at random when they begin, so the choice does not depend on how long they take.
 */
#include "arguments.h"

#define MAP_PERCPU_ARRAY 6
#define DIRECT (~0ULL)
#define COM_QUERY 3
#define COM_STMT_EXECUTE 23
/* Maximum length in bytes of a statement's text in a small record. */
#define TEXT_SMALL 512
/* Maximum length in bytes of a statement's text in a large record. Must equal MAX_TEXT in statements/mod.rs.
 */
#define TEXT_LARGE 4096

/* The values must match those in samples/record.rs. */
enum statement_kind { STATEMENT_BEGINS = 259, STATEMENT_ENDS = 260, STATEMENT_TEXT = 261 };

/* The start of a statement, or the text of a prepared statement, which is known at its first wait. */
struct statement_begin {
	__u32 tid;
	__u32 kind;
	__u32 connection; /* id of the connection, for a prepared statement; 0 if it is unknown */
	__u32 prepared; /* id of the prepared statement, unique in its connection */
	__u32 command; /* enum_server_command */
	__u32 length; /* bytes of text; 0 if it is unknown */
	__u8 text[];
};

struct statement_end {
	__u32 tid;
	__u32 kind;
	__u64 began;
	__u64 ended;
	__u64 blocked_ns;
	__u64 runnable_ns;
};

/* The number of commands that began; each one costs time, even if it is not sampled. */
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

static __always_inline void count_hit(void)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&hits, &zero);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline __u64 value_at(struct pt_regs *ctx, struct argument_place *place)
{
	__u64 value = argument(ctx, place->number), found = 0;

	if (place->offset == DIRECT)
		return value;
	bpf_probe_read_user(&found, sizeof(found), (void *)(value + place->offset));
	return found;
}

/* Bring the times of the current thread up to date if scheduler events were missed. It is running now. */
static __always_inline void is_running(struct thread *thread, struct task_struct *task, struct config *wanted)
{
	if (thread->mode != RUNNING || context_switches(task) != thread->switches)
		arrives(task, wanted, bpf_ktime_get_ns());
}

static __always_inline int send_with_room(struct statement_begin *record, void *text, __u64 length,
					  const __u64 room)
{
	struct statement_begin *begin = bpf_ringbuf_reserve(&samples, sizeof(*begin) + room, 0);

	if (!begin)
		return -1;
	barrier_var(length); /* the comparison must use the same register as the read */
	if (length > room)
		length = room;
	if (length && bpf_probe_read_user(begin->text, length, text))
		length = 0;
	*begin = *record;
	begin->length = length;
	bpf_ringbuf_submit(begin, SAMPLE_NO_WAKEUP);
	return 0;
}

static __always_inline int send(struct statement_begin *record, void *text, __u32 length)
{
	if (length <= TEXT_SMALL)
		return send_with_room(record, text, length, TEXT_SMALL);
	return send_with_room(record, text, length, TEXT_LARGE);
}

static __always_inline __u32 member(__u64 thd, __u64 offset)
{
	__u32 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)(thd + offset));
	return value;
}

static __always_inline int begins(struct pt_regs *ctx, struct thread *thread, struct task_struct *task,
				  struct config *wanted)
{
	struct statement_begin begin = {.tid = task->pid, .kind = STATEMENT_BEGINS};
	__u32 length = 0;
	__u64 thd = 0;

	begin.command = value_at(ctx, &wanted->command);
	if (begin.command == COM_QUERY)
		length = value_at(ctx, &wanted->length);
	if (begin.command == COM_STMT_EXECUTE && wanted->thd_text != DIRECT) {
		thd = value_at(ctx, &wanted->thd);
		begin.connection = member(thd, wanted->thd_connection);
		begin.prepared = value_at(ctx, &wanted->prepared);
	}
	thread->statement_thd = thd;
	return send(&begin, (void *)value_at(ctx, &wanted->text), length);
}

/* Send the text of a prepared statement if the thread has stored it in its THD. */
static __always_inline void send_prepared_text(struct thread *thread, struct task_struct *task,
					       struct config *wanted)
{
	struct statement_begin record = {.tid = task->pid, .kind = STATEMENT_TEXT};
	__u32 length = member(thread->statement_thd, wanted->thd_length);
	__u64 text = 0;

	if (!length)
		return;
	bpf_probe_read_user(&text, sizeof(text), (void *)(thread->statement_thd + wanted->thd_text));
	thread->statement_thd = 0;
	if (send(&record, (void *)text, length))
		count_lost();
}

SEC("uprobe")
int statement_enter(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 now = bpf_ktime_get_ns(), sp = REGISTER_SP(ctx);
	struct config *wanted = active(now);
	struct thread *thread;

	if (!is_server(task->tgid, task->flags))
		return 0;
	count_hit();
	if (!wanted || !wanted->statements || now < wanted->began)
		return 0;
	thread = record_of(task);
	if (!thread || (thread->statement && sp < thread->statement_sp)) /* called by the sampled statement */
		return 0;
	thread->statement = 0;
	if (bpf_get_prandom_u32() % (__u32)wanted->statements)
		return 0;
	is_running(thread, task, wanted);
	if (begins(ctx, thread, task, wanted)) {
		count_lost();
		return 0;
	}
	thread->statement_sp = sp;
	thread->statement_blocked = thread->blocked_ns;
	thread->statement_runnable = thread->runnable_ns;
	thread->statement = bpf_ktime_get_ns(); /* last, so that the time spent above is not included */
	return 0;
}

SEC("uprobe")
int statement_leave(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 now = bpf_ktime_get_ns();
	struct config *wanted = active(now);
	__u32 tid = task->pid;
	struct thread *thread;
	struct statement_end *end;

	if (!wanted || !is_server(task->tgid, task->flags))
		return 0;
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread || !thread->statement || REGISTER_SP(ctx) < thread->statement_sp)
		return 0;
	is_running(thread, task, wanted);
	end = bpf_ringbuf_reserve(&samples, sizeof(*end), 0);
	if (end) {
		end->tid = tid;
		end->kind = STATEMENT_ENDS;
		end->began = thread->statement;
		end->ended = now;
		end->blocked_ns = thread->blocked_ns - thread->statement_blocked;
		end->runnable_ns = thread->runnable_ns - thread->statement_runnable;
		bpf_ringbuf_submit(end, SAMPLE_NO_WAKEUP);
	} else {
		count_lost();
	}
	thread->statement = 0;
	return 0;
}
