/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What all probe families share: counters, histograms, calls under way. The generated part before this file
 * defines the slots (from probes/catalog/metrics.yaml), the points (one for each probe) and, for each value
 * that a probe reads, an accessor such as flush_batch_type(ctx) (from probes/catalog/probes.yaml).
 *
 * Everything is added up in the kernel and read by descriptor: no event leaves it, however busy the server
 * is. Additions are atomic although most maps are per CPU: a preemptible kernel may run two programs in turn
 * on one.
 */

/* What an accessor returns where this server has no such value. */
#define NOTHING (~0ULL)
/* Octaves of nanoseconds: the last one begins at 2^39, nine minutes. */
#define BUCKETS 40

struct histogram {
	u64 total_ns;
	u64 buckets[BUCKETS];
};

struct call_key {
	u32 tid;
	u32 point;
};

struct call {
	u64 at;
	u64 value;
};

BPF_PERCPU_ARRAY(counters, u64, COUNTERS);
BPF_PERCPU_ARRAY(histograms, struct histogram, HISTOGRAMS);
BPF_PERCPU_ARRAY(hits, u64, POINTS);
/* A thread that ended in a call leaves its entry behind; LRU so that such never fill the map. */
BPF_TABLE("lru_hash", struct call_key, struct call, calls, 16384);
/* tid -> kind, an index of THREAD_*; threads that are not in it are the clients' own. Filled by the agent,
 * which deletes those that exited. */
BPF_HASH(thread_kinds, u32, u32, 16384);
/* What found no room in a map that the programs fill. */
#define DROPPED_FILES 0
#define DROPPED_SITES 1
#define DROPPED_MAPS 2
BPF_PERCPU_ARRAY(dropped, u64, DROPPED_MAPS);
/* One entry: the tgid of the server. */
BPF_ARRAY(server, u64, 1);
/*
 * When each probe was put on (ns of the monotonic clock), and whether it counts. Taking one off takes the
 * kernel a while, in which it is hit and does not count: so what counts is a stretch of time that is known
 * exactly.
 */
struct window {
	u64 since;
	u64 open;
};

BPF_ARRAY(windows, struct window, POINTS);

/*
 * The tgid (upper half) and tid of who runs, as those of our own pid namespace see them: the maps have ids of
 * that one. Zero in any other.
 */
static inline u64 current_ids(void)
{
#ifdef PID_NAMESPACE
	struct bpf_pidns_info ids = {};
	if (bpf_get_ns_current_pid_tgid(PID_NAMESPACE_DEVICE, PID_NAMESPACE, &ids, sizeof(ids)))
		return 0;
	return (u64)ids.tgid << 32 | ids.pid;
#else
	return bpf_get_current_pid_tgid();
#endif
}

/* Uprobes belong to a file: other servers may run the same one. */
static inline int elsewhere(void)
{
	u32 index = 0;
	u64 *tgid = server.lookup(&index);
	return !tgid || (current_ids() >> 32) != *tgid;
}

/* An entry from before the window is none: the call that it began may have ended unseen. */
static inline int is_in_window(u32 point, u64 at)
{
	struct window *window = windows.lookup(&point);
	return window && at >= window->since;
}

/* Every hit costs; whether this one counts. */
static inline int hit(u32 point)
{
	struct window *window = windows.lookup(&point);
	u64 *value = hits.lookup(&point);
	if (value)
		__sync_fetch_and_add(value, 1);
	return window && window->open;
}

static inline void drop(u32 map)
{
	u64 *count = dropped.lookup(&map);
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Adds to a counter; `label` is the index of its label's value, out of `labels`. Unknown ones are left out.
 */
static inline void add(u32 slot, u32 labels, u64 label, u64 amount)
{
	u32 index = slot + (u32)label;
	u64 *value;
	if (label >= labels)
		return;
	value = counters.lookup(&index);
	if (value)
		__sync_fetch_and_add(value, amount);
}

static inline u32 octave(u64 ns)
{
	u32 bits = highest_bit(ns);
	return bits < BUCKETS ? bits : BUCKETS - 1;
}

static inline void spread(struct histogram *histogram, u64 ns)
{
	u32 bucket = octave(ns);
	__sync_fetch_and_add(&histogram->total_ns, ns);
	if (bucket < BUCKETS)
		__sync_fetch_and_add(&histogram->buckets[bucket], 1);
}

static inline void observe(u32 slot, u32 labels, u64 label, u64 ns)
{
	u32 index = slot + (u32)label;
	struct histogram *histogram;
	if (label >= labels)
		return;
	histogram = histograms.lookup(&index);
	if (histogram)
		spread(histogram, ns);
}

/* Remembers when a call began, and one value for its end. */
static inline void remember(u32 point, u64 value)
{
	struct call_key key = {(u32)bpf_get_current_pid_tgid(), point};
	struct call call = {bpf_ktime_get_ns(), value};
	calls.update(&key, &call);
}

/* Entry of a call: counts the hit and remembers the call. 0 if it does not count. */
static inline int begin(u32 point, u64 value)
{
	if (!hit(point))
		return 0;
	remember(point, value);
	return 1;
}

/* Return of a call: 0 if its entry did not count, else its duration in ns (at least 1) and what begin() was
 * told. */
static inline u64 end(u32 point, u64 *value)
{
	struct call_key key = {(u32)bpf_get_current_pid_tgid(), point};
	struct call *call = calls.lookup(&key);
	u64 took = 0;
	if (call) {
		if (is_in_window(point, call->at)) {
			took = bpf_ktime_get_ns() - call->at;
			if (!took)
				took = 1;
			*value = call->value;
		}
		calls.delete(&key);
	}
	return took;
}

/* What begin() was told by the call of that point that this thread is in; NOTHING if it is in none. */
static inline u64 inside(u32 point)
{
	struct call_key key = {(u32)bpf_get_current_pid_tgid(), point};
	struct call *call = calls.lookup(&key);
	return call && is_in_window(point, call->at) ? call->value : NOTHING;
}

static inline u32 thread_kind(void)
{
	u32 tid = (u32)current_ids();
	u32 *kind = thread_kinds.lookup(&tid);
	return kind ? *kind : THREAD_USER;
}

/* A call whose duration is all that is told of it. */
static inline int timed_enter(u32 point)
{
	if (!elsewhere())
		begin(point, 0);
	return 0;
}

static inline int timed_leave(u32 point, u32 slot)
{
	u64 value, took;
	if (elsewhere())
		return 0;
	took = end(point, &value);
	if (took)
		observe(slot, 1, 0, took);
	return 0;
}

/* A function whose calls are all that is told of it. */
static inline int counted(u32 point, u32 slot)
{
	if (elsewhere() || !hit(point))
		return 0;
	add(slot, 1, 0, 1);
	return 0;
}
