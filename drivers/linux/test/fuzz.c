// SPDX-License-Identifier: GPL-2.0
/* Random calls with arguments that are nearly right. The kernel must survive, and so must a job that is right. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"

#define CLIENTS 3
#define KNOWN 32
#define MAPPINGS 8
#define REGIONS 16

static uint64_t state;
static const char *path;
static const struct program *code;
static int files[CLIENTS];
static uint64_t addresses[KNOWN], seqnos[KNOWN];
static struct { void *at; size_t bytes; } mappings[MAPPINGS];
static unsigned long outcomes[64], submitted;

/* splitmix64 */
static uint64_t draw(void)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t below(uint64_t bound)
{
	return draw() % bound;
}

/* A number that a client may get wrong. */
static uint64_t odd_number(void)
{
	switch (below(6)) {
	case 0:
		return below(16);
	case 1:
		return 1ull << below(64);
	case 2:
		return (1ull << below(64)) - 1;
	case 3:
		return -below(5000);
	case 4:
		return below(1 << 20);
	default:
		return draw();
	}
}

static uint64_t address(void)
{
	uint64_t known = addresses[below(KNOWN)];

	switch (below(8)) {
	case 0:
		return odd_number();
	case 1:
		return known + odd_number();
	default:
		return known;
	}
}

static uint64_t size(void)
{
	if (!below(4))
		return code->regions[below(code->region_count)];
	return below(8) ? 1 + below(3 * 4096) : odd_number();
}

/* Where the kernel is asked to read or write: mostly at the arguments. */
static void *pointer(void *args)
{
	switch (below(20)) {
	case 0:
		return NULL;
	case 1:
		return (void *)0x1000;
	case 2:
		return (void *)(uintptr_t)odd_number();
	case 3:
		return (void *)0xffff888000000000u;
	case 4:
		return mappings[below(MAPPINGS)].at;
	default:
		return args;
	}
}

static int call_of(unsigned int which, unsigned long command, void *args)
{
	int result = ioctl(files[which], command, args);

	outcomes[result < 0 && errno < 64 ? errno : 0]++;
	return result;
}

static int call(unsigned long command, void *args)
{
	return call_of((unsigned int)below(CLIENTS), command, pointer(args));
}

/* A job that is right, of the client whose code it is, if there is room. */
static void good_submit(void)
{
	struct run run;

	if (run_new(files[0], code, &run))
		return;
	if (!run_submit(files[0], &run, (unsigned int)below(NPU_PRIORITIES), (unsigned int)below(2))) {
		submitted++;
		seqnos[below(KNOWN)] = run.seqno;
	}
	/* If in use, the memory is freed when the job has ended. */
	if (below(2))
		run_free(files[0], &run);
	else
		free(run.table);
}

static void fuzz_submit(void)
{
	static struct npu_region regions[REGIONS];
	struct npu_submit args = {
		.code = below(3) ? code->code_at : address(),
		.code_bytes = (uint32_t)(below(4) ? code->code_bytes : size()),
		.regions = (uintptr_t)pointer(regions),
		.region_count = (uint32_t)(below(8) ? code->region_count : odd_number()),
		.priority = (uint32_t)(below(10) ? below(NPU_PRIORITIES) : odd_number()),
		.flags = (uint32_t)(below(8) ? below(2) : odd_number()),
		.residents = (uint32_t)(below(8) ? below(256) : odd_number()),
		.reserved = below(20) ? 0 : (uint32_t)draw(),
	};

	for (unsigned int i = 0; i < REGIONS; i++) {
		regions[i].address = address();
		regions[i].bytes = i < code->region_count && below(4) ? code->regions[i] : size();
	}
	if (!call(NPU_IOC_SUBMIT, &args))
		seqnos[below(KNOWN)] = args.seqno;
}

static void fuzz_map(void)
{
	unsigned int which = (unsigned int)below(MAPPINGS);
	size_t bytes = (size_t)(1 + below(4)) * 4096;
	void *at;

	if (mappings[which].at) {
		munmap(mappings[which].at, mappings[which].bytes);
		mappings[which].at = NULL;
	}
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, below(8) ? MAP_SHARED : MAP_PRIVATE, files[below(CLIENTS)],
		  (off_t)(address() & ~4095ull));
	if (at == MAP_FAILED)
		return;
	*(volatile char *)((char *)at + below(bytes)) = (char)draw();
	mappings[which].at = at;
	mappings[which].bytes = bytes;
}

static void reopen(unsigned int which)
{
	if (files[which] >= 0)
		close(files[which]);
	files[which] = open(path, O_RDWR | O_CLOEXEC);
}

static void step(void)
{
	union {
		struct npu_info info;
		struct npu_alloc alloc;
		struct npu_free free;
		struct npu_wait wait;
		struct npu_abort abort;
		struct npu_sync sync;
		unsigned char bytes[512];
	} args;

	for (size_t i = 0; i < sizeof(args.bytes); i++)
		args.bytes[i] = (unsigned char)draw();
	switch (below(20)) {
	case 0:
		call(NPU_IOC_INFO, &args);
		break;
	case 1 ... 4:
		args.alloc.bytes = size();
		if (!call(NPU_IOC_ALLOC, &args))
			addresses[below(KNOWN)] = args.alloc.address;
		break;
	case 5 ... 6:
		args.free.address = address();
		call(NPU_IOC_FREE, &args);
		break;
	case 7 ... 9:
		fuzz_submit();
		break;
	case 10:
		good_submit();
		break;
	case 11 ... 12:
		args.wait.seqno = below(4) ? seqnos[below(KNOWN)] : odd_number();
		args.wait.timeout_ns = below(4) ? (int64_t)below(1000000) : (int64_t)odd_number();
		call(NPU_IOC_WAIT, &args);
		break;
	case 13:
		args.abort.seqno = below(4) ? seqnos[below(KNOWN)] : odd_number();
		call(NPU_IOC_ABORT, &args);
		break;
	case 14 ... 15:
		args.sync = (struct npu_sync){ address(), size(), (uint32_t)below(4), below(8) ? 0 : (uint32_t)draw() };
		call(NPU_IOC_SYNC, &args);
		break;
	case 16 ... 17:
		fuzz_map();
		break;
	case 18:
		if (!below(4))
			reopen((unsigned int)below(CLIENTS));
		else
			poll(&(struct pollfd){ .fd = files[below(CLIENTS)], .events = (short)draw() }, 1, 0);
		break;
	default:
		call(below(4) ? _IOC(below(4), 'N', 0x80 + below(16), below(600)) : (unsigned long)draw(), &args);
	}
}

/* 0 when all calls are done; what they gave is printed, so that two runs can be compared. */
int fuzz(const char *device, const struct program *program, unsigned long calls, uint64_t seed)
{
	struct program own = *program;

	state = seed;
	path = device;
	code = &own;
	for (unsigned int i = 0; i < CLIENTS; i++) {
		files[i] = -1;
		reopen(i);
	}
	if (files[0] < 0 || program_load(files[0], &own)) {
		printf("fuzz: %s: %s\n", device, strerror(errno));
		return 1;
	}
	for (unsigned long i = 0; i < calls; i++) {
		/*
		 * By chance it may have closed, have filled memory, or have
		 * jobs that it has not waited for.
		 */
		if (i % 512 == 511) {
			reopen(0);
			program_load(files[0], &own);
		}
		step();
	}
	for (unsigned int i = 0; i < CLIENTS; i++)
		close(files[i]);
	printf("fuzz: %lu calls:", calls);
	for (int i = 0; i < 64; i++)
		if (outcomes[i])
			printf(" %s %lu", i ? strerrorname_np(i) : "ok", outcomes[i]);
	printf("; %lu good jobs\n", submitted);
	return 0;
}
