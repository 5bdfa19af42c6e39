// SPDX-License-Identifier: GPL-2.0
/* Jobs: submission to a ring, and completion when their record is written. */
#include <linux/mm.h>
#include <linux/pm_runtime.h>
#include <linux/slab.h>

#include "npu.h"

#define RING(ring, register) (NPU_LOW_##register + (ring) * (NPU_MEDIUM_TAIL - NPU_LOW_TAIL))

struct npu_job *npu_job_new(u32 region_count)
{
	struct npu_job *job = kzalloc(sizeof(*job), GFP_KERNEL_ACCOUNT);

	if (!job)
		return NULL;
	job->blocks = kvcalloc((size_t)region_count + 1, sizeof(*job->blocks), GFP_KERNEL_ACCOUNT);
	if (!job->blocks) {
		kfree(job);
		return NULL;
	}
	kref_init(&job->ref);
	INIT_LIST_HEAD(&job->in_ring);
	INIT_LIST_HEAD(&job->in_client);
	return job;
}

static void free_job(struct kref *ref)
{
	struct npu_job *job = container_of(ref, struct npu_job, ref);

	kvfree(job->blocks);
	kfree(job);
}

/* Its memory has been given back before, when it ended. */
void npu_job_put(struct npu_job *job)
{
	kref_put(&job->ref, free_job);
}

static void let_go(struct npu_job *job)
{
	while (job->block_count)
		npu_block_put_locked(job->blocks[--job->block_count]);
	if (job->work)
		npu_block_put_locked(job->work);
	job->work = NULL;
}

/* A job has left the device, or the device is gone. */
void npu_job_finish(struct npu *npu, struct npu_job *job, u32 status)
{
	struct npu_client *client = job->client;

	list_del_init(&job->in_ring);
	npu->rings[job->priority].count--;
	npu->inside--;
	npu->runner = NULL;
	npu->deadline = jiffies + msecs_to_jiffies(npu_timeout_ms);
	let_go(job);
	job->status = status;
	/* Pairs with the waiters: a thread that sees the end also sees the result. */
	smp_store_release(&job->ended, true);
	if (client) {
		client->ended++;
		wake_up_all(&client->wait);
	}
	pm_runtime_mark_last_busy(&npu->pdev->dev);
	pm_runtime_put_autosuspend(&npu->pdev->dev);
	npu_job_put(job);
}

/* Whether a job has ended; then it has left its ring. */
static bool take(struct npu *npu, struct npu_job *job)
{
	struct npu_completion record;
	u32 status = readl(npu->mem + job->record + offsetof(struct npu_completion, status));

	if (status != NPU_JOB_DONE && status != NPU_JOB_FAULT && status != NPU_JOB_ABORTED)
		return false;
	if (npu_copy_from(npu, &record, job->record, sizeof(record)) || le64_to_cpu(record.seqno) != job->seqno)
		return false;
	job->cycles = le64_to_cpu(record.cycles);
	if (status == NPU_JOB_FAULT) {
		job->fault_code = le32_to_cpu(record.fault_code);
		job->fault_address = le64_to_cpu(record.fault_address);
		npu_copy_from(npu, job->text, job->text_at, sizeof(job->text) - 1);
		npu->counters.faults++;
		npu->counters.continues++;
		npu_write(npu, NPU_CONTROL, NPU_CONTROL_CONTINUE);
		dev_dbg(&npu->pdev->dev, "job %llu: fault %u at %#llx: %s\n", job->seqno, job->fault_code,
			job->fault_address, job->text);
	} else if (status == NPU_JOB_ABORTED && job->timed_out) {
		snprintf(job->text, sizeof(job->text), "no job ended for %u ms: aborted", npu_timeout_ms);
		status = NPU_ENDED_TIMEOUT;
		npu->suspicious = true;
	} else if (status == NPU_JOB_ABORTED) {
		npu->counters.aborts++;
	} else {
		npu->counters.done++;
		npu->suspicious = false;
	}
	npu_job_finish(npu, job, status);
	return true;
}

/* Remove jobs that have ended from the rings. Returns their number. Under npu->lock. */
unsigned int npu_collect(struct npu *npu)
{
	unsigned int count = 0;
	struct npu_job *job;
	int i;

	for (i = NPU_PRIORITIES - 1; i >= 0; i--) {
		while ((job = list_first_entry_or_null(&npu->rings[i].jobs, struct npu_job, in_ring))) {
			if (!take(npu, job))
				break;
			count++;
		}
	}
	for (i = NPU_PRIORITIES - 1; i >= 0 && !npu->runner; i--)
		npu->runner = list_first_entry_or_null(&npu->rings[i].jobs, struct npu_job, in_ring);
	return count;
}

/*
 * Request the end of a job: an entry that is not yet read is marked, a job that
 * has started is stopped. Under npu->lock.
 */
void npu_job_abort(struct npu *npu, struct npu_job *job)
{
	job->flags |= NPU_JOB_FLAG_CANCELLED;
	writel(job->flags, npu->mem + job->entry + offsetof(struct npu_ring_entry, flags));
	npu_write(npu, NPU_ABORT_SEQNO_LO, lower_32_bits(job->seqno));
	npu_write(npu, NPU_ABORT_SEQNO_HI, upper_32_bits(job->seqno));
	npu_write(npu, NPU_ABORT, NPU_ABORT_GO);
	npu_flush(npu);
}

/* Hold a block that a job uses; false if it is not this client's. */
static bool hold(struct npu_job *job, struct npu_client *client, u64 address, u64 bytes)
{
	struct npu_block *block = npu_block_find(client, address, bytes);

	if (!block)
		return false;
	npu_block_get(block);
	job->blocks[job->block_count++] = block;
	return true;
}

static int hold_all(struct npu_job *job, struct npu_client *client, const struct npu_submit *args,
		    const struct npu_region *regions)
{
	u32 i;

	if (!hold(job, client, args->code, args->code_bytes))
		return -EACCES;
	for (i = 0; i < args->region_count; i++)
		if (regions[i].bytes && !hold(job, client, regions[i].address, regions[i].bytes))
			return -EACCES;
	return 0;
}

static u32 resident_number(struct npu_client *client, u32 number)
{
	/* No client can use another's weights in SRAM by giving the same number. */
	if (number && !client->resident_base)
		client->resident_base = ++client->npu->resident_bases << 8;
	return number ? client->resident_base | number : 0;
}

/*
 * Record, entry, TAIL, doorbell, in this order: each may be read as soon as the
 * next one is written.
 */
static int enter_ring(struct npu *npu, struct npu_job *job, struct npu_client *client, const struct npu_submit *args)
{
	struct npu_ring *ring = &npu->rings[job->priority];
	struct npu_ring_entry entry = {
		.magic = cpu_to_le32(NPU_ENTRY_MAGIC),
		.flags = cpu_to_le32(job->flags),
		.program_address = cpu_to_le64(args->code),
		.program_bytes = cpu_to_le32(args->code_bytes),
		.region_count = cpu_to_le32(args->region_count),
		.region_table = cpu_to_le64(job->work->address),
		.seqno = cpu_to_le64(job->seqno),
		.completion = cpu_to_le64(job->record),
		.log = cpu_to_le64(job->text_at),
		.log_bytes = cpu_to_le32(NPU_TEXT_BYTES),
		.residents = cpu_to_le32(resident_number(client, args->residents)),
	};
	int err;

	job->entry = ring->base + (u64)(ring->tail % npu->ring_entries) * sizeof(entry);
	err = npu_copy_to(npu, job->entry, &entry, sizeof(entry));
	if (err)
		return err;
	ring->tail++;
	wmb();	/* the window may combine writes */
	npu_write(npu, RING(job->priority, TAIL), ring->tail);
	npu_write(npu, RING(job->priority, DOORBELL), NPU_LOW_DOORBELL_RING);
	return 0;
}

static int check_room(struct npu *npu, struct npu_client *client, u32 priority)
{
	if (client->dead || npu->state == NPU_GONE)
		return -ENODEV;
	if (npu->state != NPU_UP)
		return -EIO;
	if (client->count >= NPU_MOST_JOBS)
		return -ENOBUFS;
	if (!npu_is_there(npu)) {
		npu_gone(npu);
		return -ENODEV;
	}
	return npu->rings[priority].count < npu->ring_entries ? 0 : -EAGAIN;
}

/*
 * Submit a job. Table, record and fault log are in memory of the driver, so the
 * client cannot change what has been checked. Called between npu_enter() and
 * npu_exit(); ring and client take their own references.
 */
int npu_job_submit(struct npu_client *client, struct npu_job *job, const struct npu_submit *args,
		   const struct npu_region *regions)
{
	u64 table = (u64)args->region_count * sizeof(struct npu_region_row);
	struct npu *npu = client->npu;
	struct npu_block *work;
	int err;

	work = npu_block_new(npu, NULL, table + sizeof(struct npu_completion) + NPU_TEXT_BYTES);
	if (IS_ERR(work))
		return PTR_ERR(work);
	job->work = work;
	job->record = work->address + table;
	job->text_at = job->record + sizeof(struct npu_completion);
	job->priority = args->priority;
	job->flags = args->flags & NPU_SUBMIT_TIMING_ONLY ? NPU_JOB_FLAG_TIMING_ONLY : 0;
	err = npu_copy_to(npu, work->address, regions, table);

	mutex_lock(&npu->lock);
	err = err ?: check_room(npu, client, args->priority);
	err = err ?: hold_all(job, client, args, regions);
	if (!err) {
		job->seqno = npu->seqno + 1;
		err = enter_ring(npu, job, client, args);
	}
	if (err) {
		let_go(job);
		mutex_unlock(&npu->lock);
		return err;
	}
	npu->seqno++;
	pm_runtime_get_noresume(&npu->pdev->dev);	/* until it has ended */
	kref_get(&job->ref);
	list_add_tail(&job->in_ring, &npu->rings[job->priority].jobs);
	kref_get(&job->ref);
	list_add_tail(&job->in_client, &client->jobs);
	job->client = client;
	client->count++;
	npu->rings[job->priority].count++;
	npu->counters.jobs++;
	if (!npu->inside++) {
		npu->deadline = jiffies + msecs_to_jiffies(npu_timeout_ms);
		npu->runner = job;
		npu_watch(npu);
	}
	mutex_unlock(&npu->lock);
	return 0;
}

/* A client's job by its number, or NULL. Under npu->lock. */
struct npu_job *npu_job_find(struct npu_client *client, u64 seqno)
{
	struct npu_job *job;

	list_for_each_entry(job, &client->jobs, in_client)
		if (job->seqno == seqno)
			return job;
	return NULL;
}

/* A client has been told how its job ended. Under npu->lock. */
void npu_job_forget(struct npu_client *client, struct npu_job *job)
{
	list_del_init(&job->in_client);
	client->count--;
	if (job->ended)
		client->ended--;
	job->client = NULL;
	npu_job_put(job);
}

/* A client closes: release its jobs, and abort those in the device. Under npu->lock. */
void npu_jobs_release(struct npu_client *client)
{
	struct npu *npu = client->npu;
	struct npu_job *job, *next;

	list_for_each_entry_safe(job, next, &client->jobs, in_client) {
		if (!job->ended && !npu->removed && npu->state == NPU_UP)
			npu_job_abort(npu, job);
		npu_job_forget(client, job);
	}
}
