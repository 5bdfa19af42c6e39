/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "npu.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define GONE 0xffffffffu
#define INTERFACE 2u		/* version of registers and records that this is written for */
#define ENTRIES 64u		/* of each ring */
#define ALIGNMENT 256u		/* of device memory */
#define LOG_BYTES 256u
#define SLICE_MS 50		/* an interrupt may get lost: so often records are looked at without one */
#define STILL_SLICES 4		/* the clock of a simulated device that has nothing left to do stands still */
#define ALL_INTERRUPTS (NPU_INT_STATUS_DONE | NPU_INT_STATUS_FAULT)
#define RING_STRIDE (NPU_MEDIUM_BASE_LO - NPU_LOW_BASE_LO)

enum { PCI_COMMAND = 4, PCI_MEMORY = 1 << 1, PCI_MASTER = 1 << 2, PCI_NO_INTX = 1 << 10 };
enum { PCI_CAPABILITIES = 0x34, PCI_MSI = 5 };

uint32_t npu_read(struct npu *npu, uint32_t offset)
{
	uint64_t value;

	return vfio_read(&npu->vfio, NPU_BAR_REGISTERS, offset, 4, &value) ? GONE : (uint32_t)value;
}

static void write_register(struct npu *npu, uint32_t offset, uint32_t value)
{
	vfio_write(&npu->vfio, NPU_BAR_REGISTERS, offset, 4, value);
}

static void write_pair(struct npu *npu, uint32_t offset, uint64_t value)
{
	write_register(npu, offset, (uint32_t)value);
	write_register(npu, offset + 4, (uint32_t)(value >> 32));
}

static uint64_t read_pair(struct npu *npu, uint32_t offset)
{
	uint64_t low = npu_read(npu, offset); /* of CYCLES: this one holds the other */

	return (uint64_t)npu_read(npu, offset + 4) << 32 | low;
}

/* Device memory: the first gap that is large enough. */

static enum npu_error take(struct npu *npu, uint64_t bytes, uint64_t *address)
{
	uint64_t begin = 0;
	size_t at = 0;

	if (bytes > npu->bytes)
		return NPU_MEMORY;
	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + (bytes ? 0 : ALIGNMENT);
	while (at < npu->count && npu->blocks[at].begin - begin < bytes)
		begin = npu->blocks[at++].end;
	if (npu->bytes - begin < bytes)
		return NPU_MEMORY;
	if (npu->count == npu->room) {
		size_t room = npu->room ? 2 * npu->room : 64;
		struct npu_block *blocks = realloc(npu->blocks, room * sizeof(*blocks));
		if (!blocks)
			return NPU_MEMORY;
		npu->blocks = blocks;
		npu->room = room;
	}
	memmove(npu->blocks + at + 1, npu->blocks + at, (npu->count++ - at) * sizeof(*npu->blocks));
	npu->blocks[at] = (struct npu_block){ begin, begin + bytes };
	*address = begin;
	return NPU_OK;
}

static void give_back(struct npu *npu, uint64_t address)
{
	for (size_t at = 0; at < npu->count; at++) {
		if (npu->blocks[at].begin != address)
			continue;
		memmove(npu->blocks + at, npu->blocks + at + 1, (--npu->count - at) * sizeof(*npu->blocks));
		return;
	}
}

/* The device */

static int enable_interrupts(struct npu *npu)
{
	uint64_t at = 0, word = 0;
	int error = vfio_write(&npu->vfio, VFIO_CONFIG, PCI_COMMAND, 2, PCI_MEMORY | PCI_MASTER | PCI_NO_INTX);

	if (!error)
		error = vfio_read(&npu->vfio, VFIO_CONFIG, PCI_CAPABILITIES, 1, &at);
	for (int most = 48; !error && most && at >= 0x40; most--, at = word >> 8 & 0xfc) {
		error = vfio_read(&npu->vfio, VFIO_CONFIG, at, 4, &word);
		if (!error && (word & 0xff) == PCI_MSI) {
			error = vfio_write(&npu->vfio, VFIO_CONFIG, at + 2, 2, word >> 16 | 1);
			return error ? error : vfio_set_irq(&npu->vfio, VFIO_MSI, 0, npu->event);
		}
	}
	return error ? error : -ENODEV;
}

static enum npu_error set_up(struct npu *npu)
{
	write_register(npu, NPU_CONTROL, NPU_CONTROL_RESET);
	for (uint32_t ring = 0; ring < NPU_PRIORITIES; ring++) {
		write_pair(npu, NPU_LOW_BASE_LO + ring * RING_STRIDE, npu->ring[ring]);
		write_register(npu, NPU_LOW_SIZE + ring * RING_STRIDE, ENTRIES);
		npu->tail[ring] = 0;
	}
	write_register(npu, NPU_INT_MASK, ALL_INTERRUPTS);
	uint32_t status = npu_read(npu, NPU_STATUS);
	npu->up = status == NPU_STATUS_READY;
	return status == GONE ? NPU_GONE : status == NPU_STATUS_READY ? NPU_OK : NPU_DEVICE;
}

enum npu_error npu_open(struct npu *npu, const char *socket)
{
	enum npu_error error = NPU_OK;

	*npu = (struct npu){ .event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .memory = MAP_FAILED };
	if (vfio_open(&npu->vfio, socket) || npu->event < 0 || vfio_reset(&npu->vfio) || enable_interrupts(npu))
		error = NPU_GONE;
	uint32_t id = error ? GONE : npu_read(npu, NPU_ID), version = error ? 0 : npu_read(npu, NPU_VERSION);
	if (!error && id != 0x3155504eu)
		error = id == GONE ? NPU_GONE : NPU_DEVICE;
	if (!error && version >> NPU_VERSION_INTERFACE_SHIFT != INTERFACE)
		error = NPU_DEVICE;
	void *memory;
	size_t mapped;
	if (!error && vfio_map(&npu->vfio, NPU_BAR_MEMORY, &memory, &mapped))
		error = NPU_GONE;
	if (!error) {
		uint64_t bytes = read_pair(npu, NPU_CAP_DRAM_LO);
		npu->memory = memory;
		npu->bytes = bytes < mapped ? bytes : mapped;
		npu->khz = npu_read(npu, NPU_CAP_CLOCK);
		npu->isa = version & NPU_VERSION_ISA;
	}
	for (int ring = 0; !error && ring < NPU_PRIORITIES; ring++)
		error = take(npu, ENTRIES * sizeof(struct npu_ring_entry), &npu->ring[ring]);
	if (!error)
		error = set_up(npu);
	if (error)
		npu_close(npu);
	return error;
}

void npu_close(struct npu *npu)
{
	if (npu->memory != MAP_FAILED) {
		write_register(npu, NPU_INT_MASK, 0);
		write_register(npu, NPU_CONTROL, NPU_CONTROL_RESET); /* none of our jobs runs any more */
		munmap(npu->memory, npu->bytes);
	}
	vfio_close(&npu->vfio);
	if (npu->event >= 0)
		close(npu->event);
	free(npu->blocks);
	*npu = (struct npu){ .event = -1, .memory = MAP_FAILED, .vfio = { .socket = -1, .broken = ENOTCONN } };
}

static void end_job(struct npu_job *job, enum npu_error result)
{
	job->inside = false;
	job->ended = true;
	job->result = result;
	job->program->jobs--;
}

static void lose_jobs(struct npu *npu, enum npu_error result)
{
	for (int ring = 0; ring < NPU_PRIORITIES; ring++) {
		for (; npu->jobs[ring]; npu->jobs[ring] = npu->jobs[ring]->next)
			end_job(npu->jobs[ring], result);
	}
}

/* Programs and jobs */

enum npu_error npu_load(struct npu *npu, const struct npu_image *image, struct npu_program *program)
{
	*program = (struct npu_program){ .code_bytes = image->code_bytes, .regions = image->regions };
	if (image->isa != npu->isa)
		return NPU_DEVICE;
	program->region_bytes = malloc(image->regions * sizeof(uint64_t));
	if (!program->region_bytes || take(npu, image->code_bytes, &program->code)) {
		free(program->region_bytes);
		return NPU_MEMORY;
	}
	memcpy(program->region_bytes, image->region_bytes, image->regions * sizeof(uint64_t));
	if (take(npu, image->region_bytes[0], &program->constants)) {
		give_back(npu, program->code);
		free(program->region_bytes);
		return NPU_MEMORY;
	}
	memcpy(npu->memory + program->code, image->code, image->code_bytes);
	memcpy(npu->memory + program->constants, image->constants, image->constant_bytes);
	return NPU_OK;
}

void npu_unload(struct npu *npu, struct npu_program *program)
{
	give_back(npu, program->code);
	give_back(npu, program->constants);
	free(program->region_bytes);
}

/* A job has one block: record, fault log, region table, and its regions, one after another. */
enum npu_error npu_prepare(struct npu *npu, struct npu_program *program, struct npu_job *job)
{
	uint64_t table_bytes = program->regions * sizeof(struct npu_region_row), bytes = ALIGNMENT + LOG_BYTES;
	struct npu_region_row row;

	*job = (struct npu_job){ .program = program };
	job->address = malloc(program->regions * sizeof(uint64_t));
	bytes += (table_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	for (uint32_t region = 0; job->address && region < program->regions; region++) {
		job->address[region] = bytes;
		if (region && program->region_bytes[region] > npu->bytes - bytes)
			bytes = npu->bytes + 1;
		else if (region)
			bytes += (program->region_bytes[region] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
		if (bytes > npu->bytes)
			break;
	}
	if (!job->address || take(npu, bytes, &job->block)) {
		free(job->address);
		return NPU_MEMORY;
	}
	for (uint32_t region = 0; region < program->regions; region++) {
		job->address[region] = region ? job->block + job->address[region] : program->constants;
		row = (struct npu_region_row){ job->address[region], program->region_bytes[region] };
		memcpy(npu->memory + job->block + ALIGNMENT + LOG_BYTES + region * sizeof(row), &row, sizeof(row));
	}
	return NPU_OK;
}

void *npu_region(struct npu *npu, const struct npu_job *job, uint32_t region)
{
	return npu->memory + job->address[region];
}

void npu_release(struct npu *npu, struct npu_job *job)
{
	give_back(npu, job->block);
	free(job->address);
}

enum npu_error npu_submit(struct npu *npu, struct npu_job *job, enum npu_class ring)
{
	struct npu_completion record = { .seqno = npu->seqno + 1, .status = NPU_JOB_PENDING };
	struct npu_ring_entry entry = {
		.magic = NPU_ENTRY_MAGIC, .program_address = job->program->code,
		.program_bytes = (uint32_t)job->program->code_bytes, .region_count = job->program->regions,
		.region_table = job->block + ALIGNMENT + LOG_BYTES, .seqno = record.seqno,
		.completion = job->block, .log = job->block + ALIGNMENT, .log_bytes = LOG_BYTES,
	};
	struct npu_job **last = &npu->jobs[ring];
	uint32_t inside = 0;

	for (; *last; last = &(*last)->next)
		inside++;
	if (inside == ENTRIES)
		return NPU_FULL;
	job->seqno = ++npu->seqno;
	job->ring = ring;
	job->entry = npu->ring[ring] + npu->tail[ring]++ % ENTRIES * sizeof(entry);
	job->next = NULL;
	job->inside = true;
	job->ended = false;
	job->program->jobs++;
	*last = job;
	/* Record, entry, TAIL, doorbell, in this order: each may be read as soon as the next one is written. */
	memcpy(npu->memory + job->block, &record, sizeof(record));
	memcpy(npu->memory + job->entry, &entry, sizeof(entry));
	atomic_thread_fence(memory_order_seq_cst);
	job->begun_cycles = read_pair(npu, NPU_CYCLES_LO);
	write_register(npu, NPU_LOW_TAIL + ring * RING_STRIDE, npu->tail[ring]);
	write_register(npu, NPU_LOW_DOORBELL + ring * RING_STRIDE, NPU_LOW_DOORBELL_RING);
	return npu->vfio.broken ? NPU_GONE : NPU_OK;
}

/* Whether the record of a job has been completed. */
static bool look_at(struct npu *npu, struct npu_job *job)
{
	struct npu_completion record;

	atomic_thread_fence(memory_order_seq_cst);
	memcpy(&record, npu->memory + job->block, sizeof(record));
	if (record.seqno != job->seqno || record.status == NPU_JOB_PENDING || record.status > NPU_JOB_ABORTED)
		return false;
	job->cycles = record.cycles;
	job->fault = record.fault_code;
	job->fault_address = record.fault_address;
	memcpy(job->text, npu->memory + job->block + ALIGNMENT, sizeof(job->text) - 1);
	if (record.status == NPU_JOB_FAULT)
		write_register(npu, NPU_CONTROL, NPU_CONTROL_CONTINUE); /* the others go on */
	end_job(job, record.status == NPU_JOB_DONE ? NPU_OK : record.status == NPU_JOB_FAULT ? NPU_FAULT : NPU_ABORTED);
	return true;
}

static bool collect(struct npu *npu)
{
	bool any = false;

	for (int ring = NPU_PRIORITIES; ring--;) {
		for (; npu->jobs[ring] && look_at(npu, npu->jobs[ring]); any = true)
			npu->jobs[ring] = npu->jobs[ring]->next;
	}
	return any;
}

static void acknowledge(struct npu *npu)
{
	uint64_t count;

	if (read(npu->event, &count, sizeof(count)) > 0)
		write_register(npu, NPU_INT_STATUS, ALL_INTERRUPTS); /* before the records: what comes now is seen again */
}

enum npu_error npu_reset(struct npu *npu)
{
	enum npu_error error;
	uint64_t count;

	acknowledge(npu);
	collect(npu); /* what has ended is not lost */
	error = npu->up && !npu_is_there(npu) ? NPU_GONE : set_up(npu); /* memory is lost with the power */
	while (read(npu->event, &count, sizeof(count)) > 0) /* of before */
		;
	lose_jobs(npu, error == NPU_GONE ? NPU_GONE : NPU_ABORTED);
	return error;
}

/* Wait for an interrupt, for a slice of time at most, and see what has ended. */
static void look(struct npu *npu)
{
	struct pollfd events[2] = { { npu->event, POLLIN, 0 }, { npu->vfio.socket, 0, 0 } };
	uint32_t status;

	poll(events, 2, SLICE_MS);
	acknowledge(npu);
	if (collect(npu))
		return;
	status = npu_read(npu, NPU_STATUS);
	if (status == GONE)
		lose_jobs(npu, NPU_GONE);
	else if (status & NPU_STATUS_FAULT && !collect(npu)) /* it may have stopped just now */
		npu_reset(npu); /* a fault that belongs to no job */
}

/* Look until the job has ended, or its time is over; whether it has ended. */
static bool look_until(struct npu *npu, struct npu_job *job, uint64_t deadline_cycles)
{
	uint64_t last = 0, now;

	for (int still = 0; !job->ended && still < STILL_SLICES; last = now) {
		look(npu);
		now = job->ended ? last : read_pair(npu, NPU_CYCLES_LO);
		if (!job->ended && now > deadline_cycles)
			break;
		/* Each read takes some hundred nanoseconds. */
		still = now - last < npu->khz / 100 ? still + 1 : 0;
	}
	return job->ended;
}

enum npu_error npu_wait(struct npu *npu, struct npu_job *job, uint64_t timeout_ps)
{
	uint64_t allowed = (uint64_t)((double)timeout_ps * 1e-9 * npu->khz);

	if (look_until(npu, job, job->begun_cycles + allowed))
		return job->result;
	npu_abort(npu, job); /* ends it alone, if the device still listens */
	if (!look_until(npu, job, read_pair(npu, NPU_CYCLES_LO) + npu->khz))
		npu_reset(npu);
	return job->result == NPU_ABORTED ? NPU_TIMEOUT : job->result;
}

enum npu_error npu_abort(struct npu *npu, struct npu_job *job)
{
	uint32_t flags = NPU_JOB_FLAG_CANCELLED;

	if (!job->inside)
		return NPU_OK;
	/* One that has not been read ends when its turn comes, one that has begun at once. */
	memcpy(npu->memory + job->entry + offsetof(struct npu_ring_entry, flags), &flags, sizeof(flags));
	atomic_thread_fence(memory_order_seq_cst);
	write_pair(npu, NPU_ABORT_SEQNO_LO, job->seqno);
	write_register(npu, NPU_ABORT, NPU_ABORT_GO);
	return npu->vfio.broken ? NPU_GONE : NPU_OK;
}
