// SPDX-License-Identifier: GPL-2.0
/* What can be looked at below /sys/kernel/debug/npuN. */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "npu.h"

#define REGISTER(name) { #name, NPU_##name }

static const struct {
	const char *name;
	u32 offset;
} registers[] = {
	REGISTER(ID), REGISTER(VERSION), REGISTER(CAP_UNITS), REGISTER(CAP_MATRIX), REGISTER(CAP_VECTOR),
	REGISTER(CAP_SRAM_LO), REGISTER(CAP_SRAM_HI), REGISTER(CAP_ACC), REGISTER(CAP_DRAM_LO),
	REGISTER(CAP_DRAM_HI), REGISTER(CAP_CLOCK), REGISTER(CAP_QUEUE), REGISTER(CAP_CONTEXT_LO),
	REGISTER(CAP_CONTEXT_HI), REGISTER(STATUS), REGISTER(INT_STATUS), REGISTER(INT_MASK),
	REGISTER(FAULT_CODE), REGISTER(FAULT_ADDR_LO), REGISTER(FAULT_ADDR_HI), REGISTER(FAULT_RING),
	REGISTER(CONTEXT_BASE_LO), REGISTER(CONTEXT_BASE_HI), REGISTER(PREEMPT), REGISTER(ABORT_SEQNO_LO),
	REGISTER(ABORT_SEQNO_HI), REGISTER(SEQNO_LO), REGISTER(SEQNO_HI), REGISTER(CYCLES_LO),
	REGISTER(CYCLES_HI), REGISTER(LOW_BASE_LO), REGISTER(LOW_BASE_HI), REGISTER(LOW_SIZE),
	REGISTER(LOW_HEAD), REGISTER(LOW_TAIL), REGISTER(MEDIUM_BASE_LO), REGISTER(MEDIUM_BASE_HI),
	REGISTER(MEDIUM_SIZE), REGISTER(MEDIUM_HEAD), REGISTER(MEDIUM_TAIL), REGISTER(HIGH_BASE_LO),
	REGISTER(HIGH_BASE_HI), REGISTER(HIGH_SIZE), REGISTER(HIGH_HEAD), REGISTER(HIGH_TAIL),
};

static const char *const states[] = { "up", "stuck", "gone" };
static const char *const classes[] = { "low", "medium", "high" };

static int registers_show(struct seq_file *out, void *unused)
{
	struct npu *npu = out->private;
	int i, err = npu_enter(npu);

	if (err)
		return err;
	for (i = 0; i < ARRAY_SIZE(registers); i++)
		seq_printf(out, "%03x %-16s %08x\n", registers[i].offset, registers[i].name,
			   npu_read(npu, registers[i].offset));
	npu_exit(npu);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(registers);

static int rings_show(struct seq_file *out, void *unused)
{
	struct npu *npu = out->private;
	int i;

	mutex_lock(&npu->lock);
	seq_printf(out, "device %s, %u jobs, preemption %s\n", states[npu->state], npu->inside,
		   npu->preempts ? "on" : "off");
	for (i = 0; i < NPU_PRIORITIES; i++)
		seq_printf(out, "%-6s base %#llx, %u entries, tail %u, %u jobs\n", classes[i], npu->rings[i].base,
			   npu->ring_entries, npu->rings[i].tail, npu->rings[i].count);
	mutex_unlock(&npu->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(rings);

static int jobs_show(struct seq_file *out, void *unused)
{
	struct npu *npu = out->private;
	struct npu_job *job;
	int i;

	mutex_lock(&npu->lock);
	for (i = NPU_PRIORITIES - 1; i >= 0; i--)
		list_for_each_entry(job, &npu->rings[i].jobs, in_ring)
			seq_printf(out, "%-6s job %llu, flags %#x, entry %#llx, record %#llx%s%s\n", classes[i],
				   job->seqno, job->flags, job->entry, job->record,
				   job->client ? "" : ", its client has closed",
				   job == npu->runner ? ", has the machine" : "");
	mutex_unlock(&npu->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(jobs);

static int memory_show(struct seq_file *out, void *unused)
{
	struct npu *npu = out->private;
	struct rb_node *node;

	mutex_lock(&npu->lock);
	seq_printf(out, "%llu of %llu bytes are free\n", npu->free_bytes, npu->mem_bytes);
	for (node = rb_first(&npu->blocks); node; node = rb_next(node)) {
		struct npu_block *block = rb_entry(node, struct npu_block, node);

		seq_printf(out, "%#llx %llu bytes, %s, %u users\n", block->address, block->bytes,
			   block->owner ? "a client's" : "nobody's or the driver's", kref_read(&block->ref));
	}
	mutex_unlock(&npu->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(memory);

static int counters_show(struct seq_file *out, void *unused)
{
	struct npu *npu = out->private;
	struct npu_counters *counters = &npu->counters;

	mutex_lock(&npu->lock);
	seq_printf(out, "jobs %llu\ndone %llu\nfaults %llu\naborts %llu\ntimeouts %llu\nlost %llu\n", counters->jobs,
		   counters->done, counters->faults, counters->aborts, counters->timeouts, counters->lost);
	seq_printf(out, "irqs %llu\nirqs_for_nothing %llu\nirqs_lost %llu\n",
		   (u64)atomic64_read(&npu->irqs), (u64)atomic64_read(&npu->irqs_for_nothing), counters->irqs_lost);
	seq_printf(out, "resets %llu\ncontinues %llu\nsuspends %llu\n", counters->resets, counters->continues,
		   counters->suspends);
	mutex_unlock(&npu->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

void npu_debugfs_add(struct npu *npu)
{
	npu->debugfs = debugfs_create_dir(npu->name, NULL);
	debugfs_create_file("registers", 0444, npu->debugfs, npu, &registers_fops);
	debugfs_create_file("rings", 0444, npu->debugfs, npu, &rings_fops);
	debugfs_create_file("jobs", 0444, npu->debugfs, npu, &jobs_fops);
	debugfs_create_file("memory", 0444, npu->debugfs, npu, &memory_fops);
	debugfs_create_file("counters", 0444, npu->debugfs, npu, &counters_fops);
}
