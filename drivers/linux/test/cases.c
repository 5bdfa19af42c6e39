// SPDX-License-Identifier: GPL-2.0
/* What the driver promises, case by case. Each leaves the device as it has found it: all memory free, no job in it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

int failures;

uint64_t free_bytes(int fd)
{
	struct npu_info info;

	return ioctl(fd, NPU_IOC_INFO, &info) ? 0 : info.free_bytes;
}

/* A run that is ready to be submitted. */
struct run prepared(const struct context *context)
{
	struct run run;

	EXPECT_IS(run_new(context->fd, context->program, &run), 0);
	EXPECT_IS(run_put(context->fd, &run, 0, context->input), 0);
	return run;
}

void expect_output(const struct context *context, const struct run *run)
{
	unsigned char *output = malloc(context->output_bytes);

	EXPECT_IS(run_get(context->fd, run, 0, output), 0);
	EXPECT(!memcmp(output, context->golden, context->output_bytes), "the output is wrong");
	free(output);
}

struct npu_wait waited(const struct context *context, const struct run *run)
{
	struct npu_wait result;

	EXPECT_IS(client_wait(context->fd, run->seqno, 60 * SECOND_NS, &result), 0);
	return result;
}

void good_job(const struct context *context)
{
	struct run run = prepared(context);

	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_MEDIUM, 0), 0);
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_DONE);
	expect_output(context, &run);
	run_free(context->fd, &run);
}

/*
 * Whatever the host does to it, the job ends and reports how; a job that
 * succeeds has the right result.
 */
static void job(const struct context *context)
{
	struct run run = prepared(context);
	struct npu_wait result;

	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_MEDIUM, 0), 0);
	result = waited(context, &run);
	printf("  job %llu: status %u, fault %u at %#llx, %llu cycles, '%s'\n", (unsigned long long)run.seqno,
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

/* Jobs that break the rules end with a fault, and do not hinder the next. */
static void faulty(const struct context *context)
{
	struct run run = prepared(context);
	struct npu_submit args = {
		.code = context->program->code_at,
		.code_bytes = (uint32_t)context->program->code_bytes,
		.regions = (uintptr_t)run.table,
		.region_count = context->program->region_count,
	};
	struct npu_wait result;

	run.table[2].bytes -= 64;
	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_LOW, 0), 0);
	result = waited(context, &run);
	EXPECT_IS(result.status, NPU_ENDED_FAULT);
	EXPECT_IS(result.fault_code, 2);
	EXPECT(strlen(result.text) > 0, "no text");
	good_job(context);
	run.table[2].bytes += 64;
	args.code_bytes = 12;	/* in the midst of an instruction */
	EXPECT_IS(client_submit(context->fd, &args), 0);
	run.seqno = args.seqno;
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_FAULT);
	good_job(context);
	run_free(context->fd, &run);
}

static void full(const struct context *context)
{
	struct run run = prepared(context);
	struct npu_info info;
	struct npu_wait result;
	uint64_t first, count = 0;

	EXPECT_IS(ioctl(context->fd, NPU_IOC_INFO, &info), 0);
	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_LOW, 0), 0);
	first = run.seqno;
	while (!run_submit(context->fd, &run, NPU_CLASS_LOW, NPU_SUBMIT_TIMING_ONLY))
		count++;
	EXPECT_IS(errno, EAGAIN);
	EXPECT(count + 1 >= info.ring_entries, "%llu jobs", (unsigned long long)count + 1);
	EXPECT_IS(client_wait(context->fd, run.seqno, 0, &result), -ETIME);
	for (uint64_t seqno = first; seqno <= run.seqno; seqno++) {
		EXPECT_IS(client_wait(context->fd, seqno, 60 * SECOND_NS, &result), 0);
		EXPECT_IS(result.status, NPU_ENDED_DONE);
	}
	EXPECT_IS(client_wait(context->fd, first, 0, &result), -ENOENT);
	expect_output(context, &run);
	run_free(context->fd, &run);
}

static void aborts(const struct context *context)
{
	static const unsigned int wanted[4] = { NPU_ENDED_ABORTED, NPU_ENDED_DONE, NPU_ENDED_ABORTED, NPU_ENDED_DONE };
	struct run runs[4];

	for (int i = 0; i < 4; i++)
		runs[i] = prepared(context);
	for (int i = 0; i < 3; i++)
		EXPECT_IS(run_submit(context->fd, &runs[i], NPU_CLASS_MEDIUM, 0), 0);
	EXPECT_IS(client_abort(context->fd, runs[0].seqno), 0);	/* it runs */
	EXPECT_IS(client_abort(context->fd, runs[2].seqno), 0);	/* it waits */
	EXPECT_IS(run_submit(context->fd, &runs[3], NPU_CLASS_MEDIUM, 0), 0);
	for (int i = 0; i < 4; i++) {
		EXPECT_IS(waited(context, &runs[i]).status, wanted[i]);
		if (wanted[i] == NPU_ENDED_DONE)
			expect_output(context, &runs[i]);
		run_free(context->fd, &runs[i]);
	}
	EXPECT_IS(client_abort(context->fd, runs[0].seqno), -ENOENT);
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
	EXPECT_IS(client_wait(context->fd, low[0].seqno, 0, &result), -ETIME);
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

/* One job of priority LOW, two of MEDIUM, three of HIGH, one after the other, and one of HIGH with a fault. */
static void classes(const struct context *context)
{
	struct run run = prepared(context);

	for (unsigned int priority = 0; priority < NPU_PRIORITIES; priority++) {
		for (unsigned int i = 0; i <= priority; i++) {
			EXPECT_IS(run_submit(context->fd, &run, priority, 0), 0);
			EXPECT_IS(waited(context, &run).status, NPU_ENDED_DONE);
			expect_output(context, &run);
		}
	}
	run.table[2].bytes -= 64;
	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_HIGH, 0), 0);
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_FAULT);
	run_free(context->fd, &run);
}

/* Independent clients at the same time. */
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
	{ "faulty", faulty, true },
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
	{ "classes", classes, false },
	{ "sleeps", sleeps, false },
	{ "loses", loses, false },
};

/*
 * Run the case of that name, or "all". Returns the number of failures, -1 if
 * there is no such case.
 */
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
