// SPDX-License-Identifier: GPL-2.0
/*
 * Error handling.
 *
 * A fault of a job ends that job, and CONTINUE lets the others continue. A
 * fault without a job requires a reset. Interrupts can get lost, so the
 * watchdog also checks the records. If no job has ended for timeout_ms, the
 * running job is aborted; if that does not help, the jobs that may be running;
 * then the device is reset, finally its PCI function, and all jobs in it are
 * lost. It is also reset after a successful abort, as soon as it is idle or
 * another job hangs, because the cause may remain. No job is resubmitted: its
 * writes to shared memory cannot be undone.
 */
#include "npu.h"

#define POLL_MS 100u

/* All jobs in the device have ended, for a reason outside them. Under npu->lock. */
void npu_jobs_lose(struct npu *npu, u32 status, const char *why)
{
	struct npu_job *job, *next;
	int i;

	for (i = 0; i < NPU_PRIORITIES; i++) {
		list_for_each_entry_safe(job, next, &npu->rings[i].jobs, in_ring) {
			bool timed_out = job->timed_out && status == NPU_ENDED_RESET;

			strscpy(job->text, why, sizeof(job->text));
			npu->counters.lost++;
			npu_job_finish(npu, job, timed_out ? NPU_ENDED_TIMEOUT : status);
		}
	}
}

/* The device is not there, or was without power: nothing that lay in it comes back. Under npu->lock. */
void npu_gone(struct npu *npu)
{
	struct npu_client *client;

	if (npu->state == NPU_GONE)
		return;
	npu->state = NPU_GONE;
	dev_err(&npu->pdev->dev, "the device is gone, and all that was in it\n");
	npu_jobs_lose(npu, NPU_ENDED_GONE, "the device is gone");
	list_for_each_entry(client, &npu->clients, link) {
		client->dead = true;
		wake_up_all(&client->wait);
	}
}

/*
 * After a read of device memory: -ENODEV if the data may be invalid, because
 * the device was gone meanwhile, or came back without its memory.
 */
int npu_check_presence(struct npu *npu)
{
	int err;

	mutex_lock(&npu->lock);
	if (npu->state == NPU_UP && !npu_is_there(npu))
		npu_gone(npu);
	err = npu->state == NPU_GONE ? -ENODEV : 0;
	mutex_unlock(&npu->lock);
	return err;
}

/* Reset the device; jobs that have not ended by now are lost. Under npu->lock. */
void npu_recover(struct npu *npu, u32 status, const char *why)
{
	int err;

	npu_collect(npu);
	npu->suspicious = false;
	dev_warn(&npu->pdev->dev, "reset, %u jobs are lost: %s\n", npu->inside, why);
	err = npu_start(npu);
	if (err == -EIO)
		err = npu_restart_function(npu);
	if (err == -ENODEV) {
		npu_gone(npu);
		return;
	}
	if (err) {
		dev_err(&npu->pdev->dev, "does not come back from a reset: STATUS %#x\n", npu_read(npu, NPU_STATUS));
		npu->state = NPU_STUCK;
	} else {
		npu->state = NPU_UP;
	}
	npu_jobs_lose(npu, status, why);
}

/* Look at records and, where they leave a question, at the status. Under npu->lock, the device is up. */
void npu_look(struct npu *npu)
{
	unsigned int ended = npu_collect(npu);
	char why[64];
	u32 status;

	if (npu->suspicious && !npu->inside) {
		/* What hung may hang again. */
		npu_recover(npu, NPU_ENDED_RESET, "a job ran out of its time");
		return;
	}
	if (ended && !npu->inside)
		return;
	status = npu_read(npu, NPU_STATUS);
	if (status == NPU_ALL_ONES) {
		npu_gone(npu);
	} else if (status & NPU_STATUS_FAULT) {
		/*
		 * The status is more recent than the records: a job may have
		 * stopped the device just now.
		 */
		if (npu_collect(npu))
			return;
		snprintf(why, sizeof(why), "fault %u at %#llx of no job, in rings %#x", npu_read(npu, NPU_FAULT_CODE),
			 npu_read_pair(npu, NPU_FAULT_ADDR_LO), npu_read(npu, NPU_FAULT_RING));
		npu->counters.faults++;
		npu_recover(npu, NPU_ENDED_RESET, why);
	}
}

/*
 * The next job to abort: the running one, then those that may be running; NULL
 * when all have been aborted.
 */
static struct npu_job *suspect(struct npu *npu)
{
	struct npu_job *job;
	int i;

	if (npu->runner && !npu->preempts && !(npu->runner->flags & NPU_JOB_FLAG_CANCELLED))
		return npu->runner;
	for (i = NPU_PRIORITIES - 1; i >= 0; i--) {
		job = list_first_entry_or_null(&npu->rings[i].jobs, struct npu_job, in_ring);
		if (job && !(job->flags & NPU_JOB_FLAG_CANCELLED))
			return job;
	}
	return NULL;
}

static void check_deadline(struct npu *npu)
{
	struct npu_job *job;

	if (time_before(jiffies, npu->deadline))
		return;
	job = npu->suspicious ? NULL : suspect(npu);
	if (!job) {
		npu_recover(npu, NPU_ENDED_RESET, "jobs do not end");
		return;
	}
	dev_warn(&npu->pdev->dev, "job %llu: no job ended for %u ms: aborted\n", job->seqno, npu_timeout_ms);
	npu->counters.timeouts++;
	job->timed_out = true;
	npu_job_abort(npu, job);
	npu->deadline = jiffies + msecs_to_jiffies(NPU_GRACE_MS);
}

/* Look after the jobs in the device. */
void npu_watch(struct npu *npu)
{
	schedule_delayed_work(&npu->watchdog, msecs_to_jiffies(min(POLL_MS, npu_timeout_ms)));
}

void npu_watchdog(struct work_struct *work)
{
	struct npu *npu = container_of(work, struct npu, watchdog.work);
	unsigned int before;

	down_read(&npu->gate);
	mutex_lock(&npu->lock);
	if (!npu->removed && npu->state == NPU_UP && npu->inside) {
		before = npu->inside;
		if (npu_is_there(npu))
			npu_look(npu);
		else
			npu_gone(npu);
		if (npu->inside < before && npu->state == NPU_UP)
			npu->counters.irqs_lost++;
		if (npu->inside && npu->state == NPU_UP)
			check_deadline(npu);
		if (npu->inside)
			npu_watch(npu);
	}
	mutex_unlock(&npu->lock);
	up_read(&npu->gate);
}
