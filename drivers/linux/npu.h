/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The parts of the driver, from the device upwards:
 *
 *   npu_hw.c       registers, memory window, reset, interrupts
 *   npu_mem.c      allocation of device memory; its mappings
 *   npu_ring.c     jobs: submission to a ring, completion
 *   npu_recover.c  faults, hung jobs, removal of the device
 *   npu_file.c     the character device
 *   npu_debugfs.c  debugging information
 *   npu_power.c    suspend and resume; resets by others
 *   npu_main.c     PCI, the module
 *
 * Locks, outermost first. Nothing that may fault on user memory is called with
 * any of them held: a fault takes mmap_lock, under which mappings take these.
 *
 *   gate   (rw) held for reading during accesses to the device, which is then
 *          present and awake. Removal of the device holds it for writing.
 *   lock   rings, jobs, clients, memory.
 *   block->lock  the pages that replace a block under User Mode Linux.
 */
#ifndef _NPU_H
#define _NPU_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "npusim.h"
#include "npu_uapi.h"

#define NPU_INTERFACE 2		/* VERSION.INTERFACE that this driver was written for */
#define NPU_ID_MAGIC 0x3155504e
#define NPU_ALL_ONES (~0u)	/* what is read from a device that is not there */
#define NPU_MOST_JOBS 256	/* of one client */
#define NPU_MOST_RESIDENTS 255
#define NPU_CHUNK SZ_16K	/* bytes that are copied at a time */
#define NPU_UML_BYTES SZ_16M	/* what User Mode Linux reaches of a BAR: see lib/logic_iomem.c */
#define NPU_GRACE_MS 100	/* from an abort to the next step of recovery */
#define NPU_RESET_US 1000000
#define NPU_MARK 0x6b726d2d7574706eull	/* memory that still has it has had power all the time */

enum npu_state {
	NPU_UP,
	NPU_STUCK,		/* did not come back from a reset */
	NPU_GONE,		/* reads as all ones */
};

struct npu_counters {
	u64 jobs, done, faults, aborts, timeouts, lost;
	u64 irqs_lost;
	u64 resets, continues, suspends;
};

struct npu_ring {
	struct list_head jobs;	/* in the device, oldest first */
	unsigned int count;
	u32 tail;
	u64 base;
};

struct npu {
	struct kref ref;
	struct pci_dev *pdev;
	struct miscdevice misc;
	char name[16];
	int number;
	void __iomem *regs;
	void __iomem *mem;
	u64 mem_bytes;
	u64 context_bytes;
	u32 ring_entries;
	int vectors;		/* one for each of the sources of INT_ROUTE that are used, as far as there are */
	struct pci_saved_state *saved;	/* configuration space, as of probe */
	bool preempts;

	struct rw_semaphore gate;
	bool removed;		/* under gate */

	struct mutex lock;	/* the rest */
	enum npu_state state;
	struct rb_root blocks;
	u64 free_bytes;
	struct npu_block *ring_block;
	u64 mark;		/* address of NPU_MARK, while it sleeps */
	struct npu_block *context;
	struct npu_ring rings[NPU_PRIORITIES];
	struct list_head clients;
	u64 seqno;
	u32 resident_bases;
	unsigned int inside;	/* jobs in all rings */
	struct npu_job *runner;	/* the job that runs, as far as known */
	bool suspicious;	/* a job has exceeded its time, and none has completed since */
	unsigned long deadline;	/* when the wait for any job to end is over, in jiffies */
	struct delayed_work watchdog;
	struct npu_counters counters;
	atomic64_t irqs, irqs_for_nothing;	/* of the interrupt handlers, several at a time */
	struct dentry *debugfs;
};

struct npu_block {
	struct rb_node node;
	struct kref ref;	/* one for its owner, each job and each mapping */
	struct npu *npu;
	struct npu_client *owner;	/* NULL: the driver, or freed */
	u64 address;
	u64 bytes;		/* whole pages */
	struct mutex lock;	/* pages */
	struct page **pages;	/* see npu_mem.c */
};

struct npu_client {
	struct npu *npu;
	struct list_head link;
	struct list_head jobs;
	unsigned int count;	/* jobs, waited for not yet */
	unsigned int ended;	/* of them */
	u32 resident_base;
	bool dead;		/* what it had was lost with the device */
	struct address_space *mapping;
	wait_queue_head_t wait;
};

struct npu_job {
	struct kref ref;	/* one each for the ring, the client and each waiter */
	struct list_head in_ring;
	struct list_head in_client;
	struct npu_client *client;	/* NULL: has closed */
	struct npu_block *work;	/* region table, completion record, text */
	struct npu_block **blocks;
	u32 block_count;
	u64 seqno;
	u64 entry;
	u64 record;
	u64 text_at;
	u32 priority;
	u32 flags;
	bool timed_out;
	bool ended;
	u32 status;
	u32 fault_code;
	u64 fault_address;
	u64 cycles;
	char text[NPU_TEXT_BYTES];
};

/* npu_main.c */
extern unsigned int npu_timeout_ms;
void npu_get(struct npu *npu);
void npu_put(struct npu *npu);
int npu_enter(struct npu *npu);
void npu_exit(struct npu *npu);

/* npu_power.c */
extern const struct dev_pm_ops npu_pm_ops;
extern const struct pci_error_handlers npu_error_handlers;

/* npu_hw.c */
u32 npu_read(struct npu *npu, u32 offset);
u64 npu_read_pair(struct npu *npu, u32 low);
void npu_write(struct npu *npu, u32 offset, u32 value);
void npu_flush(struct npu *npu);
bool npu_is_there(struct npu *npu);
int npu_copy_to(struct npu *npu, u64 address, const void *from, u64 bytes);
int npu_copy_from(struct npu *npu, void *to, u64 address, u64 bytes);
int npu_zero(struct npu *npu, u64 address, u64 bytes);
int npu_start(struct npu *npu);
int npu_restart_function(struct npu *npu);
void npu_quiet(struct npu *npu);
void npu_mark(struct npu *npu);
bool npu_has_mark(struct npu *npu);
irqreturn_t npu_irq(int irq, void *data);
irqreturn_t npu_irq_thread(int irq, void *data);
irqreturn_t npu_message_thread(int irq, void *data);

/* npu_mem.c */
struct npu_block *npu_block_reserve(struct npu *npu, u64 bytes);
struct npu_block *npu_block_new(struct npu *npu, struct npu_client *owner, u64 bytes);
struct npu_block *npu_block_find(struct npu_client *client, u64 address, u64 bytes);
void npu_block_get(struct npu_block *block);
void npu_block_put(struct npu_block *block);
void npu_block_put_locked(struct npu_block *block);
void npu_blocks_release(struct npu_client *client);
void npu_mappings_zap(struct npu *npu);
int npu_block_mmap(struct npu_client *client, struct vm_area_struct *vma);
int npu_block_sync(struct npu_block *block, u64 offset, u64 bytes, u32 direction);

/* npu_ring.c */
struct npu_job *npu_job_new(u32 region_count);
void npu_job_put(struct npu_job *job);
int npu_job_submit(struct npu_client *client, struct npu_job *job, const struct npu_submit *args,
		   const struct npu_region *regions);
struct npu_job *npu_job_find(struct npu_client *client, u64 seqno);
void npu_job_forget(struct npu_client *client, struct npu_job *job);
void npu_job_abort(struct npu *npu, struct npu_job *job);
void npu_jobs_release(struct npu_client *client);
void npu_job_finish(struct npu *npu, struct npu_job *job, u32 status);
unsigned int npu_collect(struct npu *npu);

/* npu_recover.c */
void npu_look(struct npu *npu);
void npu_recover(struct npu *npu, u32 status, const char *why);
void npu_gone(struct npu *npu);
int npu_check_presence(struct npu *npu);
void npu_jobs_lose(struct npu *npu, u32 status, const char *why);
void npu_watch(struct npu *npu);
void npu_watchdog(struct work_struct *work);

/* npu_file.c */
extern const struct file_operations npu_fops;

/* npu_debugfs.c */
void npu_debugfs_add(struct npu *npu);

#endif
