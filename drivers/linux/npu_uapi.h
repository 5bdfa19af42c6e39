/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The interface of /dev/npuN.
 *
 * An open file is a client: memory and jobs belong to it, no other client can
 * refer to them, and everything is released when the file is closed. Addresses
 * are those of device memory. They are also the offsets for mmap().
 *
 * Errors other than wrong arguments: EAGAIN, the ring of that priority is full;
 * ENOBUFS, too many jobs that were not waited for; EIO, the device does not
 * come back from a reset; ENODEV, the device is gone, with everything that this
 * client had in it.
 */
#ifndef _NPU_UAPI_H
#define _NPU_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NPU_UAPI_VERSION 1
#define NPU_TEXT_BYTES 256

/* npu_submit.priority */
#define NPU_CLASS_LOW 0
#define NPU_CLASS_MEDIUM 1
#define NPU_CLASS_HIGH 2
#define NPU_PRIORITIES 3

/* npu_submit.flags */
#define NPU_SUBMIT_TIMING_ONLY 1

/* npu_wait.status: how a job has ended */
#define NPU_ENDED_DONE 1
#define NPU_ENDED_FAULT 2	/* see fault_code, fault_address, text */
#define NPU_ENDED_ABORTED 3	/* as NPU_IOC_ABORT asked for */
#define NPU_ENDED_TIMEOUT 4	/* the driver aborted it: no job ended for too long */
#define NPU_ENDED_RESET 5	/* lost in a reset of the device, whoever caused it */
#define NPU_ENDED_GONE 6	/* lost with the device */

/* npu_sync.direction */
#define NPU_SYNC_TO_DEVICE 1
#define NPU_SYNC_FROM_DEVICE 2

struct npu_info {
	__u32 uapi_version;
	__u32 device_version;	/* register VERSION */
	__u32 cap_units;	/* register CAP_UNITS */
	__u32 clock_khz;
	__u64 memory_bytes;	/* of the device */
	__u64 free_bytes;	/* what all clients together can still have */
	__u32 ring_entries;	/* jobs of one priority in the device at a time */
	__u32 most_jobs;	/* of one client that it has not waited for */
	__u32 most_regions;	/* of a job */
	__u32 page_bytes;	/* memory comes in multiples of it */
	__u32 preempts;		/* 1: a job of a higher priority parks one of a lower */
	__u32 jobs;		/* of this client, waited for not yet */
};

/* Memory of the device, all zeros; address: out. */
struct npu_alloc {
	__u64 bytes;
	__u64 address;
};

/* Memory in use by a job or a mapping is freed when that ends. */
struct npu_free {
	__u64 address;
};

struct npu_region {
	__u64 address;
	__u64 bytes;
};

/*
 * A job: a stream of instructions and the regions that they name, all of it in
 * memory of this client. seqno: out, the job's number.
 */
struct npu_submit {
	__u64 code;
	__u64 regions;		/* user's pointer to struct npu_region[] */
	__u32 code_bytes;
	__u32 region_count;
	__u32 priority;
	__u32 flags;
	__u32 residents;	/* 0 to 255: what this client calls the weights that stay */
	__u32 reserved;		/* 0 */
	__u64 seqno;
};

/*
 * Wait until a job of this client has ended. Returns 0 and forgets the job;
 * ETIME when it has not in that time: < 0 for ever, 0 looks.
 */
struct npu_wait {
	__u64 seqno;
	__s64 timeout_ns;
	__u32 status;
	__u32 fault_code;
	__u64 fault_address;
	__u64 cycles;
	char text[NPU_TEXT_BYTES];
};

/* Request the end of a job; npu_wait reports how it ended. */
struct npu_abort {
	__u64 seqno;
};

/*
 * Synchronize mapped memory and device memory: TO_DEVICE after writing and
 * before submitting, FROM_DEVICE after waiting and before reading. FROM_DEVICE
 * returns -ENODEV for a device that is gone or has lost its memory. If it is
 * lost while mapped memory is read, another FROM_DEVICE of 0 bytes afterwards
 * detects this.
 */
struct npu_sync {
	__u64 address;
	__u64 bytes;
	__u32 direction;
	__u32 reserved;		/* 0 */
};

#define NPU_IOC_INFO _IOR('N', 0x80, struct npu_info)
#define NPU_IOC_ALLOC _IOWR('N', 0x81, struct npu_alloc)
#define NPU_IOC_FREE _IOW('N', 0x82, struct npu_free)
#define NPU_IOC_SUBMIT _IOWR('N', 0x83, struct npu_submit)
#define NPU_IOC_WAIT _IOWR('N', 0x84, struct npu_wait)
#define NPU_IOC_ABORT _IOW('N', 0x85, struct npu_abort)
#define NPU_IOC_SYNC _IOW('N', 0x86, struct npu_sync)
#define NPU_IOC_RESET _IO('N', 0x87) /* of the whole device; requires CAP_SYS_ADMIN */

#endif
