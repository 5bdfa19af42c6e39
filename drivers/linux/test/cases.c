// SPDX-License-Identifier: GPL-2.0
/* What the driver promises, case by case. Each leaves the device as it has found it: all memory free, no job in it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define SECOND_NS 1000000000LL

struct context {
	const char *device;
	int fd;
	struct program *program;	/* loaded for fd */
	const unsigned char *input;
	const unsigned char *golden;
	uint64_t output_bytes;
};

static int failures;

#define EXPECT(condition, ...) \
	do { \
		if (!(condition)) { \
			failures++; \
			printf("  line %d: " #condition ": ", __LINE__); \
			printf(__VA_ARGS__); \
			printf("\n"); \
		} \
	} while (0)

#define EXPECT_IS(value, wanted) \
	do { \
		long long got_ = (value), wanted_ = (wanted); \
		EXPECT(got_ == wanted_, "%lld", got_); \
	} while (0)

static uint64_t free_bytes(int fd)
{
	struct npu_info info;

	return ioctl(fd, NPU_IOC_INFO, &info) ? 0 : info.free_bytes;
}

/* A run that is ready to be submitted. */
static struct run prepared(const struct context *context)
{
	struct run run;

	EXPECT_IS(run_new(context->fd, context->program, &run), 0);
	EXPECT_IS(run_put(context->fd, &run, 0, context->input), 0);
	return run;
}

static void expect_output(const struct context *context, const struct run *run)
{
	unsigned char *output = malloc(context->output_bytes);

	EXPECT_IS(run_get(context->fd, run, 0, output), 0);
	EXPECT(!memcmp(output, context->golden, context->output_bytes), "the output is wrong");
	free(output);
}

static struct npu_wait waited(const struct context *context, const struct run *run)
{
	struct npu_wait result;

	EXPECT_IS(client_wait(context->fd, run->fence, 60 * SECOND_NS, &result), 0);
	return result;
}

static void good_job(const struct context *context)
{
	struct run run = prepared(context);

	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_MEDIUM, 0), 0);
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_DONE);
	expect_output(context, &run);
	run_free(context->fd, &run);
}

/* Whatever the host does to it: the job ends, and how is told; a job that ends well is right. */
static void job(const struct context *context)
{
	struct run run = prepared(context);
	struct npu_wait result;

	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_MEDIUM, 0), 0);
	result = waited(context, &run);
	printf("  job %llu: status %u, fault %u at %#llx, %llu cycles, '%s'\n", (unsigned long long)run.fence,
	       result.status, result.fault_code, (unsigned long long)result.fault_address,
	       (unsigned long long)result.cycles, result.text);
	if (result.status == NPU_ENDED_DONE)
		expect_output(context, &run);
	run_free(context->fd, &run);
}

static void good(const struct context *context)
{
	for (int i = 0; i < 20; i++)
		good_job(context);
}

static void full(const struct context *context)
{
	struct run run = prepared(context);
	struct npu_info info;
	struct npu_wait result;
	uint64_t first, count = 0;

	EXPECT_IS(ioctl(context->fd, NPU_IOC_INFO, &info), 0);
	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_LOW, 0), 0);
	first = run.fence;
	while (!run_submit(context->fd, &run, NPU_CLASS_LOW, NPU_SUBMIT_TIMING_ONLY))
		count++;
	EXPECT_IS(errno, EAGAIN);
	EXPECT(count + 1 >= info.ring_entries, "%llu jobs", (unsigned long long)count + 1);
	EXPECT_IS(client_wait(context->fd, run.fence, 0, &result), -ETIME);
	for (uint64_t fence = first; fence <= run.fence; fence++) {
		EXPECT_IS(client_wait(context->fd, fence, 60 * SECOND_NS, &result), 0);
		EXPECT_IS(result.status, NPU_ENDED_DONE);
	}
	EXPECT_IS(client_wait(context->fd, first, 0, &result), -ENOENT);
	expect_output(context, &run);
	run_free(context->fd, &run);
}

static void aborts(const struct context *context)
{
	struct run runs[4];
	static const unsigned int wanted[4] = { NPU_ENDED_ABORTED, NPU_ENDED_DONE, NPU_ENDED_ABORTED, NPU_ENDED_DONE };

	for (int i = 0; i < 4; i++) {
		runs[i] = prepared(context);
		EXPECT_IS(run_submit(context->fd, &runs[i], NPU_CLASS_MEDIUM, 0), 0);
	}
	EXPECT_IS(client_abort(context->fd, runs[2].fence), 0);
	EXPECT_IS(client_abort(context->fd, runs[0].fence), 0);
	for (int i = 0; i < 4; i++) {
		EXPECT_IS(waited(context, &runs[i]).status, wanted[i]);
		if (wanted[i] == NPU_ENDED_DONE)
			expect_output(context, &runs[i]);
		run_free(context->fd, &runs[i]);
	}
	EXPECT_IS(client_abort(context->fd, runs[0].fence), -ENOENT);
}

static void priorities(const struct context *context)
{
	struct run low[3], high = prepared(context);
	struct npu_wait result;

	for (int i = 0; i < 3; i++) {
		low[i] = prepared(context);
		EXPECT_IS(run_submit(context->fd, &low[i], NPU_CLASS_LOW, 0), 0);
	}
	for (int i = 0; i < 20; i++)	/* reads registers, which takes time: the first has begun */
		free_bytes(context->fd);
	EXPECT_IS(run_submit(context->fd, &high, NPU_CLASS_HIGH, 0), 0);
	EXPECT_IS(waited(context, &high).status, NPU_ENDED_DONE);
	EXPECT_IS(client_wait(context->fd, low[0].fence, 0, &result), -ETIME);
	expect_output(context, &high);
	run_free(context->fd, &high);
	for (int i = 0; i < 3; i++) {
		EXPECT_IS(waited(context, &low[i]).status, NPU_ENDED_DONE);
		expect_output(context, &low[i]);
		run_free(context->fd, &low[i]);
	}
}

static void reset(const struct context *context)
{
	struct run runs[3];

	for (int i = 0; i < 3; i++) {
		runs[i] = prepared(context);
		EXPECT_IS(run_submit(context->fd, &runs[i], i, 0), 0);
	}
	EXPECT_IS(ioctl(context->fd, NPU_IOC_RESET), 0);
	for (int i = 0; i < 3; i++) {
		EXPECT_IS(waited(context, &runs[i]).status, NPU_ENDED_RESET);
		run_free(context->fd, &runs[i]);
	}
	good_job(context);
}

static void polls(const struct context *context)
{
	struct pollfd entry = { .fd = context->fd, .events = POLLIN | POLLOUT };
	struct run run = prepared(context);

	EXPECT_IS(poll(&entry, 1, 0), 1);
	EXPECT_IS(entry.revents, POLLOUT);
	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_HIGH, 0), 0);
	entry.events = POLLIN;
	EXPECT_IS(poll(&entry, 1, 0), 0);
	EXPECT_IS(poll(&entry, 1, 60000), 1);
	EXPECT_IS(entry.revents, POLLIN);
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_DONE);
	EXPECT_IS(poll(&entry, 1, 0), 0);
	run_free(context->fd, &run);
}

/* A client that closes, or is killed, in the midst of its jobs leaves nothing behind. */
static void closes(const struct context *context)
{
	uint64_t before = free_bytes(context->fd);
	struct context other = *context;
	struct program program = *context->program;
	struct run run;
	int status;

	other.program = &program;
	for (int killed = 0; killed < 2; killed++) {
		pid_t child = fork();

		if (!child) {
			other.fd = open(context->device, O_RDWR);
			EXPECT_IS(program_load(other.fd, &program), 0);
			for (int i = 0; i < 8; i++) {
				run = prepared(&other);
				EXPECT_IS(run_submit(other.fd, &run, i % NPU_CLASSES, 0), 0);
			}
			if (killed)
				kill(getpid(), SIGKILL);
			_exit(failures);
		}
		EXPECT_IS(waitpid(child, &status, 0), child);
		EXPECT_IS(killed ? WTERMSIG(status) : WEXITSTATUS(status), killed ? SIGKILL : 0);
		good_job(context);
		for (int i = 0; i < 100 && free_bytes(context->fd) != before; i++)
			usleep(10000);
		EXPECT_IS(free_bytes(context->fd), before);
	}
}

static void isolation(const struct context *context)
{
	int other = open(context->device, O_RDWR);
	uint64_t secret, own, page = (uint64_t)getpagesize();
	struct run run = prepared(context);
	struct npu_sync range = { .direction = NPU_SYNC_FROM_DEVICE };
	struct npu_wait result;
	unsigned char *buffer = malloc(page);

	memset(buffer, 0x5a, page);
	EXPECT(other >= 0, "%d", errno);
	EXPECT_IS(client_alloc(context->fd, page, &secret), 0);
	EXPECT_IS(client_put(context->fd, secret, buffer, page), 0);
	EXPECT_IS(client_alloc(other, page, &own), 0);

	/* Another's memory, whole or in part, cannot be mapped, copied, given back or named in a job. */
	EXPECT_IS(client_get(other, buffer, secret, page), -EACCES);
	EXPECT_IS(client_get(other, buffer, own, 2 * page), -EACCES);
	EXPECT_IS(client_get(other, buffer, 0, page), -EACCES);
	EXPECT_IS(client_free(other, secret), -EINVAL);
	EXPECT_IS(client_free(context->fd, secret + 1), -EINVAL);

	const uint64_t starts[] = { secret, own, own + 1, own };
	const uint64_t sizes[] = { 1, page + 1, UINT64_MAX, UINT64_MAX - own + 2 };

	for (int i = 0; i < 4; i++) {
		range.address = starts[i];
		range.bytes = sizes[i];
		EXPECT_IS(ioctl(other, NPU_IOC_SYNC, &range), -1);
		EXPECT_IS(errno, EACCES);
	}
	EXPECT_IS(run_submit(other, &run, 0, 0), -EACCES);
	for (unsigned int i = 0; i < context->program->region_count; i++) {
		struct run foreign = run;

		foreign.table = malloc(context->program->region_count * sizeof(*foreign.table));
		memcpy(foreign.table, run.table, context->program->region_count * sizeof(*foreign.table));
		if (foreign.table[i].bytes) {
			foreign.table[i].address = own;
			EXPECT_IS(run_submit(context->fd, &foreign, 0, 0), -EACCES);
		}
		free(foreign.table);
	}

	/* Nor another's jobs. */
	EXPECT_IS(run_submit(context->fd, &run, 0, 0), 0);
	EXPECT_IS(client_wait(other, run.fence, 0, &result), -ENOENT);
	EXPECT_IS(client_abort(other, run.fence), -ENOENT);
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_DONE);

	/* What was another's comes back as zeros. */
	EXPECT_IS(client_free(context->fd, secret), 0);
	EXPECT_IS(client_alloc(other, page, &own), 0);
	EXPECT_IS(own, secret);
	EXPECT_IS(client_get(other, buffer, own, page), 0);
	for (uint64_t i = 0; i < page; i++)
		EXPECT_IS(buffer[i], 0);
	close(other);
	free(buffer);
	run_free(context->fd, &run);
}

/* A mapping outlives the block that it is of; the memory is given to nobody meanwhile. */
static void mappings(const struct context *context)
{
	uint64_t before = free_bytes(context->fd), page = (uint64_t)getpagesize(), address, next;
	unsigned char *at;

	EXPECT_IS(client_alloc(context->fd, 4 * page, &address), 0);
	at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED, context->fd, (off_t)address);
	EXPECT(at != MAP_FAILED, "%d", errno);
	EXPECT(mmap(NULL, page, PROT_READ, MAP_PRIVATE, context->fd, (off_t)address) == MAP_FAILED, "private");
	memset(at, 7, 4 * page);
	munmap(at + page, page);
	EXPECT_IS(client_free(context->fd, address), 0);
	EXPECT_IS(at[0] + at[4 * page - 1], 14);
	EXPECT_IS(client_alloc(context->fd, 4 * page, &next), 0);
	EXPECT(next != address, "%#llx", (unsigned long long)next);
	EXPECT_IS(client_free(context->fd, next), 0);
	munmap(at, page);
	munmap(at + 2 * page, 2 * page);
	EXPECT_IS(free_bytes(context->fd), before);
	EXPECT_IS(client_alloc(context->fd, 0, &address), -EINVAL);
	EXPECT_IS(client_alloc(context->fd, UINT64_MAX, &address), -ENOMEM);
	EXPECT_IS(client_alloc(context->fd, before + 1, &address), -ENOMEM);
	EXPECT_IS(free_bytes(context->fd), before);
}

/* Clients that know nothing of one another, at the same time. */
static void clients(const struct context *context)
{
	pid_t children[4];
	int status;

	for (int i = 0; i < 4; i++) {
		children[i] = fork();
		if (!children[i]) {
			struct program program = *context->program;
			struct context own = *context;

			own.fd = open(context->device, O_RDWR);
			own.program = &program;
			EXPECT_IS(program_load(own.fd, &program), 0);
			for (int k = 0; k < 10; k++)
				good_job(&own);
			fflush(stdout);
			_exit(failures != 0);
		}
	}
	for (int i = 0; i < 4; i++) {
		EXPECT_IS(waitpid(children[i], &status, 0), children[i]);
		EXPECT_IS(status, 0);
	}
}

static const struct {
	const char *name;
	void (*run)(const struct context *context);
	bool in_all;
} all[] = {
	{ "good", good, true },
	{ "full", full, true },
	{ "aborts", aborts, true },
	{ "priorities", priorities, true },
	{ "reset", reset, true },
	{ "polls", polls, true },
	{ "closes", closes, true },
	{ "isolation", isolation, true },
	{ "mappings", mappings, true },
	{ "clients", clients, true },
	{ "job", job, false },
};

/* Run the case of that name, or "all". How many have failed; -1 if there is none of that name. */
int cases(const char *device, const char *name, struct program *program, const unsigned char *input,
	  const unsigned char *golden)
{
	struct context context = { .device = device, .program = program, .input = input, .golden = golden };
	int failed = 0;
	bool found = false;

	context.output_bytes = program->regions[2 + program->inputs];
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		if (strcmp(name, "all") ? strcmp(name, all[i].name) : !all[i].in_all)
			continue;
		found = true;
		failures = 0;
		context.fd = open(device, O_RDWR);
		EXPECT(context.fd >= 0, "%s: %s", device, strerror(errno));
		if (context.fd >= 0) {
			EXPECT_IS(program_load(context.fd, program), 0);
			all[i].run(&context);
			close(context.fd);
		}
		printf("case %s: %s\n", all[i].name, failures ? "FAILED" : "passed");
		fflush(stdout);
		failed += failures != 0;
	}
	return found ? failed : -1;
}
