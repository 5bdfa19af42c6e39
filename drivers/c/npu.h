/* SPDX-License-Identifier: MIT */
/* A driver in user space for the simulated NPU of docs/device.md, over vfio-user. One thread at a time. */
#ifndef NPU_H
#define NPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "npusim.h"
#include "vfio.h"

enum npu_error { NPU_OK, NPU_MEMORY, NPU_FULL, NPU_FAULT, NPU_TIMEOUT, NPU_ABORTED, NPU_GONE, NPU_DEVICE };
enum npu_class { NPU_LOW, NPU_MEDIUM, NPU_HIGH, NPU_PRIORITIES };

/* The output of the compiler: instructions, constants, the size of each region. */
struct npu_image {
	const void *code, *constants;
	uint64_t code_bytes, constant_bytes;
	uint32_t isa, regions;
	const uint64_t *region_bytes;
};

/* An image in device memory. Stays where it is while jobs of it exist. */
struct npu_program {
	uint64_t code, code_bytes, constants;
	uint32_t regions, jobs;
	uint64_t *region_bytes;
};

/* One run, from npu_prepare() to npu_release(). */
struct npu_job {
	struct npu_program *program;
	struct npu_job *next;		/* in the same ring */
	uint64_t block, seqno, entry, begun_cycles;
	uint64_t *address;		/* of each region */
	enum npu_class ring;
	bool inside, ended;
	enum npu_error result;
	uint64_t cycles, fault_address;	/* as the completion record has them */
	uint32_t fault;
	char text[256];			/* the fault that the device reports */
};

struct npu_block {
	uint64_t begin, end;
};

struct npu {
	struct vfio vfio;
	uint8_t *memory;		/* device DRAM */
	uint64_t bytes;
	struct npu_block *blocks;	/* what is taken of it, by address */
	size_t count, room;
	uint64_t ring[NPU_PRIORITIES], seqno;
	uint32_t tail[NPU_PRIORITIES], khz, isa;
	struct npu_job *jobs[NPU_PRIORITIES];	/* in the device, oldest first */
	int event;
	bool up;			/* set up, and not reset since */
};

enum npu_error npu_open(struct npu *npu, const char *socket);
void npu_close(struct npu *npu);
/* Drops every job in the device: they end with NPU_ABORTED. Programs stay. */
enum npu_error npu_reset(struct npu *npu);

enum npu_error npu_load(struct npu *npu, const struct npu_image *image, struct npu_program *program);
void npu_unload(struct npu *npu, struct npu_program *program);

/* Device memory for a run. Inputs are written where npu_region() says, before npu_submit(); outputs are read there
 * after npu_wait(), and are valid only if npu_is_there() afterwards. A job must not move until it is released, which is
 * impossible while it is in the device. */
enum npu_error npu_prepare(struct npu *npu, struct npu_program *program, struct npu_job *job);
void *npu_region(struct npu *npu, const struct npu_job *job, uint32_t region);
enum npu_error npu_submit(struct npu *npu, struct npu_job *job, enum npu_class ring);
/* How the job ended. One that does not end in time, of the device's clock, is aborted, by a reset if need be. */
enum npu_error npu_wait(struct npu *npu, struct npu_job *job, uint64_t timeout_ps);
enum npu_error npu_abort(struct npu *npu, struct npu_job *job);
void npu_release(struct npu *npu, struct npu_job *job);

/* A register; all ones if the device is gone. */
uint32_t npu_read(struct npu *npu, uint32_t offset);

/* Whether the device is still the one that was set up: one that comes back has been reset, and its memory is zero. */
static inline bool npu_is_there(struct npu *npu)
{
	return npu_read(npu, NPU_INT_MASK) == (NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);
}

#endif
