// SPDX-License-Identifier: GPL-2.0
/* Tests of memory: ownership, lifetime, release. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

/* A client that closes or is killed while its jobs run leaves nothing behind. */
void closes(const struct context *context)
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
				EXPECT_IS(run_submit(other.fd, &run, i % NPU_PRIORITIES, 0), 0);
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

void isolation(const struct context *context)
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
	EXPECT_IS(client_wait(other, run.seqno, 0, &result), -ENOENT);
	EXPECT_IS(client_abort(other, run.seqno), -ENOENT);
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

/* A mapping outlives its block; the memory is not reused meanwhile. */
void mappings(const struct context *context)
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
