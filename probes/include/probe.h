/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Code shared by all probe families: counters, histograms, and calls in progress. The generated code before
 * and after this file (c_source.py) defines the names from the catalog. For each metric of
 * probes/catalog/metrics.yaml, these are SLOT_<metric>, LABELS_<metric> (the number of values of its label)
 * and LABEL_<metric>_<value>. For each probe of probes/catalog/probes.yaml, they are POINT_<probe>,
 * HAVE_<probe> (if the probe is in use), and the function <probe>_<value>(ctx) for each of its values.
 *
 * Everything is aggregated in the kernel and read through the maps' descriptors: no events are sent to user
 * space, regardless of the server's load. Additions are atomic although most maps are per CPU, because on a
 * preemptible kernel one program can interrupt another on the same CPU.
 */

/* Returned by an accessor if the value is not available on this server. */
#define NOTHING (~0ULL)
/* Number of histogram buckets, one per power of two in ns. The last one begins at 2^39 ns (9 minutes). */
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
/* A thread that exits during a call leaves its entry behind. Because the map is LRU, such entries never fill
 * it. */
BPF_TABLE("lru_hash", struct call_key, struct call, calls, 16384);
/* tid -> kind, one of THREAD_*. Threads that are not in the map serve clients. User space adds the
 * entries, and deletes the entries of exited threads. */
BPF_HASH(thread_kinds, u32, u32, 16384);
/* Slots of `dropped`, one for each map that the programs fill: the number of entries that did not fit. */
#define DROPPED_FILES 0
#define DROPPED_SITES 1
#define DROPPED_MAPS 2
BPF_PERCPU_ARRAY(dropped, u64, DROPPED_MAPS);
/* The only entry is the server's tgid. */
BPF_ARRAY(server, u64, 1);
/*
 * The time at which each probe was attached (ns of the monotonic clock), and whether the results of its hits
 * are counted. Detaching is slow, so at the end of a counting window, `open` is cleared first. Then the
 * results of hits during detaching are not counted, and the window's length is known exactly. (`hits` counts
 * all hits.)
 */
struct window {
	u64 since;
	u64 open;
};

BPF_ARRAY(windows, struct window, POINTS);

/*
 * Return the tgid (upper half) and tid of the current thread as numbered in Innoscope's own pid namespace,
 * which the maps also use. Return 0 for a thread in any other namespace.
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

/* Return 1 if the current process is not the server. A uprobe is set on a file, which other servers may run
 * too. */
static inline int elsewhere(void)
{
	u32 index = 0;
	u64 *tgid = server.lookup(&index);
	return !tgid || (current_ids() >> 32) != *tgid;
}

/* Return 1 if a call began within the window. An entry from before the window is stale, because that call's
 * return may have been missed. */
static inline int is_in_window(u32 point, u64 at)
{
	struct window *window = windows.lookup(&point);
	return window && at >= window->since;
}

/* Count a hit for the cost estimate, and return 1 if the probe's results are currently counted. */
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

/* Add to a counter. `label` is the index of the label's value. Indexes that are not less than `labels` are
 * ignored.
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

#define ADD(metric, label, amount) add(SLOT_##metric, LABELS_##metric, label, amount)

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

#define OBSERVE(metric, label, ns) observe(SLOT_##metric, LABELS_##metric, label, ns)

/* Store the time at which a call began, and one value for its return. */
static inline void remember(u32 point, u64 value)
{
	struct call_key key = {(u32)bpf_get_current_pid_tgid(), point};
	struct call call = {bpf_ktime_get_ns(), value};
	calls.update(&key, &call);
}

/* Handle a function's entry: count the hit for the cost estimate. If the probe's results are currently
 * counted, store the call and return 1; otherwise return 0. */
static inline int begin(u32 point, u64 value)
{
	if (!hit(point))
		return 0;
	remember(point, value);
	return 1;
}

/* Handle a function's return: return the call's duration in ns (at least 1) and the value passed to begin(),
 * or 0 if the entry was not counted. */
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

/* Return the value passed to begin() by this thread's current call to the function at that point, or NOTHING
 * if no counted call is in progress. */
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

/* Handle the entry of a function whose calls are only timed. */
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

/* Handle the entry of a function whose calls are only counted. */
static inline int counted(u32 point, u32 slot)
{
	if (elsewhere() || !hit(point))
		return 0;
	add(slot, 1, 0, 1);
	return 0;
}
