/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sample the stack of the server's thread that is running on a CPU when the CPU's software clock event fires.
 * The perf events are per CPU, not per thread, so they add no cost to the server's context switches, and
 * threads created later are sampled too.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "sample.h"
#include "server.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SEC("perf_event")
int on_tick(void *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pt_regs *regs;

	if (!is_server(BPF_CORE_READ(task, tgid), BPF_CORE_READ(task, flags)) || !is_same_process(task))
		return 0;
	regs = finds_registers() ? (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf())
				 : registers_on_stack(task);
	if (sample_take(ctx, &samples, task, regs, 0, 1, server.with_kernel_stack))
		count_lost();
	return 0;
}
