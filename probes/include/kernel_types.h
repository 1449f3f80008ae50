/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#pragma once

/*
 * The kernel types that Innoscope's CO-RE programs read. Only the names of types and fields matter: libbpf
 * relocates every field access with the running kernel's types (BTF). Therefore no vmlinux.h of a particular
 * kernel is needed.
 */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

#include "registers.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

/* A call whose return address was replaced by a return probe. */
struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct mm_struct {
	unsigned long start_stack;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct sched_info {
	unsigned long pcount;
};

struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	struct sched_entity se;
	struct sched_info sched_info;
	struct mm_struct *mm;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	unsigned long nvcsw;
	unsigned long nivcsw;
	__u64 start_time; /* CLOCK_MONOTONIC */
	__u64 start_boottime; /* CLOCK_BOOTTIME */
	char comm[16];
	struct thread_struct thread;
	struct uprobe_task *utask;
	void *stack;
};

/* Before Linux 5.14. */
struct task_struct___with_state {
	long state;
};

#pragma clang attribute pop

/* The context of an iterator. Its layout never changes, so libbpf does not have to search the kernel's types
 * for it.
 */

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};
