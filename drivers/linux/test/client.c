// SPDX-License-Identifier: GPL-2.0
/* The calls of /dev/npuN as functions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "client.h"

#define FIRST_IO 2		/* regions before it: constants, scratch */
#define MOST_RESIDENTS 255

static int call(int fd, unsigned long command, void *args)
{
	return ioctl(fd, command, args) < 0 ? -errno : 0;
}

int client_alloc(int fd, uint64_t bytes, uint64_t *address)
{
	struct npu_alloc args = { .bytes = bytes };
	int err = call(fd, NPU_IOC_ALLOC, &args);

	*address = args.address;
	return err;
}

int client_free(int fd, uint64_t address)
{
	struct npu_free args = { .address = address };

	return call(fd, NPU_IOC_FREE, &args);
}

static int sync_memory(int fd, uint64_t address, uint64_t bytes, uint32_t direction)
{
	struct npu_sync args = { .address = address, .bytes = bytes, .direction = direction };

	return call(fd, NPU_IOC_SYNC, &args);
}

/* Map the block that begins at this address. */
static void *map(int fd, uint64_t address, uint64_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)address);
}

int client_put(int fd, uint64_t address, const void *from, uint64_t bytes)
{
	void *at;
	int err;

	if (!bytes)
		return 0;
	at = map(fd, address, bytes);
	if (at == MAP_FAILED)
		return -errno;
	memcpy(at, from, bytes);
	err = sync_memory(fd, address, bytes, NPU_SYNC_TO_DEVICE);
	munmap(at, bytes);
	return err;
}

int client_get(int fd, void *to, uint64_t address, uint64_t bytes)
{
	void *at;
	int err;

	if (!bytes)
		return 0;
	at = map(fd, address, bytes);
	if (at == MAP_FAILED)
		return -errno;
	err = sync_memory(fd, address, bytes, NPU_SYNC_FROM_DEVICE);
	if (!err) {
		memcpy(to, at, bytes);
		err = sync_memory(fd, address, 0, NPU_SYNC_FROM_DEVICE); /* it was there until now */
	}
	munmap(at, bytes);
	return err;
}

int client_submit(int fd, struct npu_submit *args)
{
	return call(fd, NPU_IOC_SUBMIT, args);
}

int client_wait(int fd, uint64_t seqno, int64_t timeout_ns, struct npu_wait *result)
{
	memset(result, 0, sizeof(*result));
	result->seqno = seqno;
	result->timeout_ns = timeout_ns;
	return call(fd, NPU_IOC_WAIT, result);
}

int client_abort(int fd, uint64_t seqno)
{
	struct npu_abort args = { .seqno = seqno };

	return call(fd, NPU_IOC_ABORT, &args);
}

/* Code and constants; all of it or, when memory does not suffice, nothing. */
int program_load(int fd, struct program *program)
{
	/*
	 * Weights that stay in SRAM belong to one program at one address. When
	 * all numbers are used, none stay.
	 */
	static unsigned int loaded;
	int err = client_alloc(fd, program->code_bytes, &program->code_at);

	program->residents = loaded < MOST_RESIDENTS ? ++loaded : 0;
	if (err) {
		program->code_at = 0;
		return err;
	}
	program->constants_at = 0;
	if (program->regions[0])
		err = client_alloc(fd, program->regions[0], &program->constants_at);
	if (!err)
		err = client_put(fd, program->code_at, program->code, program->code_bytes);
	if (!err)
		err = client_put(fd, program->constants_at, program->constants, program->constants_bytes);
	if (err)
		program_unload(fd, program);
	return err;
}

int program_unload(int fd, struct program *program)
{
	int err = client_free(fd, program->code_at);

	if (program->constants_at)
		client_free(fd, program->constants_at);
	program->code_at = 0;
	program->constants_at = 0;
	return err;
}

int run_new(int fd, const struct program *program, struct run *run)
{
	int err = 0;

	run->program = program;
	run->seqno = 0;
	run->table = calloc(program->region_count, sizeof(*run->table));
	if (!run->table)
		return -ENOMEM;
	run->table[0].address = program->constants_at;
	for (unsigned int i = 0; i < program->region_count && !err; i++) {
		run->table[i].bytes = program->regions[i];
		if (i && program->regions[i]) {
			uint64_t address;

			err = client_alloc(fd, program->regions[i], &address);
			if (!err)
				run->table[i].address = address;
		}
	}
	if (err)
		run_free(fd, run);
	return err;
}

void run_free(int fd, struct run *run)
{
	for (unsigned int i = 1; run->table && i < run->program->region_count; i++)
		if (run->table[i].address)
			client_free(fd, run->table[i].address);
	free(run->table);
	run->table = NULL;
}

int run_put(int fd, const struct run *run, unsigned int input, const void *data)
{
	const struct npu_region *region = &run->table[FIRST_IO + input];

	return client_put(fd, region->address, data, region->bytes);
}

int run_get(int fd, const struct run *run, unsigned int output, void *data)
{
	const struct npu_region *region = &run->table[FIRST_IO + run->program->inputs + output];

	return client_get(fd, data, region->address, region->bytes);
}

int run_submit(int fd, struct run *run, unsigned int priority, unsigned int flags)
{
	struct npu_submit args = {
		.code = run->program->code_at,
		.code_bytes = (uint32_t)run->program->code_bytes,
		.regions = (uintptr_t)run->table,
		.region_count = run->program->region_count,
		.priority = priority,
		.flags = flags,
		.residents = run->program->residents,
	};
	int err = client_submit(fd, &args);

	if (!err)
		run->seqno = args.seqno;
	return err;
}
