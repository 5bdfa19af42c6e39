// SPDX-License-Identifier: GPL-2.0
/* The character device: an open file is a client. Arguments are copied and checked here, with no lock held. */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "npu.h"

/* A device that has been lost is tried again for each new client: it may be back. Under npu->lock. */
static int check_up(struct npu *npu)
{
	int err;

	if (npu->state == NPU_UP)
		return 0;
	err = npu_restart_function(npu);
	if (err)
		return err;
	dev_info(&npu->pdev->dev, "the device is back\n");
	npu->state = NPU_UP;
	return 0;
}

static int npu_open(struct inode *inode, struct file *file)
{
	struct npu *npu = container_of(file->private_data, struct npu, misc);
	struct npu_client *client = kzalloc(sizeof(*client), GFP_KERNEL_ACCOUNT);
	int err;

	if (!client)
		return -ENOMEM;
	err = npu_enter(npu);
	if (err) {
		kfree(client);
		return err;
	}
	mutex_lock(&npu->lock);
	err = check_up(npu);
	if (!err) {
		npu_get(npu);
		client->npu = npu;
		client->mapping = file->f_mapping;
		INIT_LIST_HEAD(&client->jobs);
		init_waitqueue_head(&client->wait);
		list_add_tail(&client->link, &npu->clients);
		file->private_data = client;
	}
	mutex_unlock(&npu->lock);
	npu_exit(npu);
	if (err) {
		kfree(client);
		return err;
	}
	return nonseekable_open(inode, file);
}

static int npu_release(struct inode *inode, struct file *file)
{
	struct npu_client *client = file->private_data;
	struct npu *npu = client->npu;

	/* Jobs in the device keep it awake. Without jobs there is nothing to do. */
	down_read(&npu->gate);
	mutex_lock(&npu->lock);
	npu_jobs_release(client);
	npu_blocks_release(client);
	list_del(&client->link);
	mutex_unlock(&npu->lock);
	up_read(&npu->gate);
	kfree(client);
	npu_put(npu);
	return 0;
}

static int npu_info(struct npu_client *client, struct npu_info *info)
{
	struct npu *npu = client->npu;

	info->uapi_version = NPU_UAPI_VERSION;
	info->device_version = npu_read(npu, NPU_VERSION);
	info->cap_units = npu_read(npu, NPU_CAP_UNITS);
	info->clock_khz = npu_read(npu, NPU_CAP_CLOCK);
	info->memory_bytes = npu->mem_bytes;
	info->ring_entries = npu->ring_entries;
	info->most_jobs = NPU_MOST_JOBS;
	info->most_regions = NPU_MOST_REGIONS;
	info->page_bytes = PAGE_SIZE;
	mutex_lock(&npu->lock);
	info->free_bytes = npu->free_bytes;
	info->preempts = npu->preempts;
	info->jobs = client->count;
	mutex_unlock(&npu->lock);
	return 0;
}

static int npu_alloc(struct npu_client *client, struct npu_alloc *args)
{
	struct npu_block *block = npu_block_new(client->npu, client, args->bytes);

	if (IS_ERR(block))
		return PTR_ERR(block);
	args->address = block->address;
	return 0;
}

static int npu_free(struct npu_client *client, const struct npu_free *args)
{
	struct npu *npu = client->npu;
	struct npu_block *block;
	int err = 0;

	mutex_lock(&npu->lock);
	block = npu_block_find(client, args->address, 0);
	if (block && block->address == args->address) {
		block->owner = NULL;
		npu_block_put_locked(block);
	} else {
		err = -EINVAL;
	}
	mutex_unlock(&npu->lock);
	return err;
}

static int npu_submit(struct npu_client *client, struct npu_submit *args)
{
	struct npu_region *regions;
	struct npu_job *job;
	int err;

	if (args->flags & ~NPU_SUBMIT_TIMING_ONLY || args->reserved || args->priority >= NPU_PRIORITIES ||
	    !args->code_bytes || args->region_count > NPU_MOST_REGIONS || args->residents > NPU_MOST_RESIDENTS)
		return -EINVAL;
	regions = vmemdup_user(u64_to_user_ptr(args->regions), args->region_count * sizeof(*regions));
	if (IS_ERR(regions))
		return PTR_ERR(regions);
	job = npu_job_new(args->region_count);
	err = job ? npu_enter(client->npu) : -ENOMEM;
	if (!err) {
		err = npu_job_submit(client, job, args, regions);
		args->seqno = job->seqno;
		npu_exit(client->npu);
	}
	if (job)
		npu_job_put(job);
	kvfree(regions);
	return err;
}

/* Pairs with npu_job_finish(): the result is there when it is seen to have ended. */
static bool has_ended(struct npu_job *job)
{
	return smp_load_acquire(&job->ended);	/* see above */
}

static int await(struct npu_client *client, struct npu_job *job, s64 timeout_ns)
{
	if (timeout_ns < 0)
		return wait_event_interruptible(client->wait, has_ended(job));
	if (has_ended(job))
		return 0;
	if (!timeout_ns)
		return -ETIME;
	return wait_event_interruptible_hrtimeout(client->wait, has_ended(job), ns_to_ktime(timeout_ns));
}

static int npu_wait(struct npu_client *client, struct npu_wait *args, void __user *user)
{
	struct npu *npu = client->npu;
	struct npu_job *job;
	int err;

	mutex_lock(&npu->lock);
	job = npu_job_find(client, args->seqno);
	if (job)
		kref_get(&job->ref);
	mutex_unlock(&npu->lock);
	if (!job)
		return -ENOENT;

	err = await(client, job, args->timeout_ns);
	/* A restarted call does not know the remaining time. */
	if (err == -ERESTARTSYS && args->timeout_ns > 0)
		err = -EINTR;
	if (!err) {
		args->status = job->status;
		args->fault_code = job->fault_code;
		args->fault_address = job->fault_address;
		args->cycles = job->cycles;
		memcpy(args->text, job->text, sizeof(args->text));
		if (copy_to_user(user, args, sizeof(*args)))
			err = -EFAULT;
	}
	if (!err) {
		mutex_lock(&npu->lock);
		if (job->client)	/* another thread may have been woken, too */
			npu_job_forget(client, job);
		mutex_unlock(&npu->lock);
	}
	npu_job_put(job);
	return err;
}

static int npu_abort(struct npu_client *client, const struct npu_abort *args)
{
	struct npu *npu = client->npu;
	struct npu_job *job;

	mutex_lock(&npu->lock);
	job = npu_job_find(client, args->seqno);
	if (job && !job->ended && npu->state == NPU_UP)
		npu_job_abort(npu, job);
	mutex_unlock(&npu->lock);
	return job ? 0 : -ENOENT;
}

static int npu_sync(struct npu_client *client, const struct npu_sync *args)
{
	struct npu *npu = client->npu;
	struct npu_block *block;
	int err;

	if (args->reserved || (args->direction != NPU_SYNC_TO_DEVICE && args->direction != NPU_SYNC_FROM_DEVICE))
		return -EINVAL;
	mutex_lock(&npu->lock);
	block = npu_block_find(client, args->address, args->bytes);
	if (block)
		npu_block_get(block);
	mutex_unlock(&npu->lock);
	if (!block)
		return -EACCES;
	err = npu_block_sync(block, args->address - block->address, args->bytes, args->direction);
	npu_block_put(block);
	if (!err && args->direction == NPU_SYNC_FROM_DEVICE)
		err = npu_check_presence(npu);
	return err;
}

static int npu_reset(struct npu_client *client)
{
	struct npu *npu = client->npu;

	mutex_lock(&npu->lock);
	if (npu->state != NPU_GONE)
		npu_recover(npu, NPU_ENDED_RESET, "asked for");
	mutex_unlock(&npu->lock);
	return 0;
}

/* What talks to the device. */
static int talk(struct npu_client *client, unsigned int command, void *args)
{
	struct npu *npu = client->npu;
	int err = npu_enter(npu);

	if (err)
		return err;
	if (READ_ONCE(client->dead))
		err = -ENODEV;
	else if (command == NPU_IOC_INFO)
		err = npu_info(client, args);
	else if (command == NPU_IOC_ALLOC)
		err = npu_alloc(client, args);
	else if (command == NPU_IOC_ABORT)
		err = npu_abort(client, args);
	else if (command == NPU_IOC_SYNC)
		err = npu_sync(client, args);
	else
		err = npu_reset(client);
	npu_exit(npu);
	return err;
}

static long npu_ioctl(struct file *file, unsigned int command, unsigned long user)
{
	struct npu_client *client = file->private_data;
	union {
		struct npu_info info;
		struct npu_alloc alloc;
		struct npu_free free;
		struct npu_submit submit;
		struct npu_wait wait;
		struct npu_abort abort;
		struct npu_sync sync;
	} args = {};
	void __user *at = (void __user *)user;
	int err;

	switch (command) {
	case NPU_IOC_RESET:
		if (!capable(CAP_SYS_ADMIN))
			return -EPERM;
		break;
	case NPU_IOC_INFO:
	case NPU_IOC_ALLOC:
	case NPU_IOC_FREE:
	case NPU_IOC_SUBMIT:
	case NPU_IOC_WAIT:
	case NPU_IOC_ABORT:
	case NPU_IOC_SYNC:
		break;
	default:
		return -ENOTTY;
	}
	if (_IOC_DIR(command) & _IOC_WRITE && copy_from_user(&args, at, _IOC_SIZE(command)))
		return -EFAULT;

	if (command == NPU_IOC_WAIT)	/* asks for nothing but what is known, and copies on its own */
		return npu_wait(client, &args.wait, at);
	if (command == NPU_IOC_FREE)
		return npu_free(client, &args.free);
	if (command == NPU_IOC_SUBMIT)
		err = npu_submit(client, &args.submit);
	else
		err = talk(client, command, &args);
	if (!err && _IOC_DIR(command) & _IOC_READ && copy_to_user(at, &args, _IOC_SIZE(command)))
		err = -EFAULT;
	return err;
}

static __poll_t npu_poll(struct file *file, struct poll_table_struct *table)
{
	struct npu_client *client = file->private_data;
	struct npu *npu = client->npu;
	__poll_t events = 0;
	int i;

	poll_wait(file, &client->wait, table);
	mutex_lock(&npu->lock);
	if (client->ended)
		events |= EPOLLIN | EPOLLRDNORM;
	if (client->dead)
		events |= EPOLLERR | EPOLLHUP;
	for (i = 0; i < NPU_PRIORITIES; i++)
		if (client->count < NPU_MOST_JOBS && npu->rings[i].count < npu->ring_entries)
			events |= EPOLLOUT | EPOLLWRNORM;
	mutex_unlock(&npu->lock);
	return events;
}

static int npu_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct npu_client *client = file->private_data;

	if (READ_ONCE(client->dead))
		return -ENODEV;
	return npu_block_mmap(client, vma);
}

const struct file_operations npu_fops = {
	.owner = THIS_MODULE,
	.open = npu_open,
	.release = npu_release,
	.unlocked_ioctl = npu_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = npu_poll,
	.mmap = npu_mmap,
};
