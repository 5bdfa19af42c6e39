// SPDX-License-Identifier: GPL-2.0
/* Cases about a system that sleeps. Somebody must have seen to it that it wakes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"

static void sleep_until_woken(void)
{
	int state = open("/sys/power/state", O_WRONLY);

	EXPECT(state >= 0, "%s", strerror(errno));
	EXPECT(write(state, "mem", 3) == 3, "%s", strerror(errno));
	close(state);
}

/* In the midst of a job: it ends well, and memory is as it was. */
void sleeps(const struct context *context)
{
	struct run run = prepared(context);

	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_MEDIUM, 0), 0);
	sleep_until_woken();
	EXPECT_IS(waited(context, &run).status, NPU_ENDED_DONE);
	expect_output(context, &run);
	run_free(context->fd, &run);
	good_job(context);
}

/*
 * The device loses power: clients whose memory is lost get an error, and new
 * clients find a working device.
 */
void loses(const struct context *context)
{
	struct program program = *context->program;
	struct context other = *context;
	struct run run = prepared(context);
	uint64_t address;

	sleep_until_woken();
	EXPECT_IS(run_submit(context->fd, &run, NPU_CLASS_MEDIUM, 0), -ENODEV);
	EXPECT_IS(client_alloc(context->fd, 1, &address), -ENODEV);
	other.fd = open(context->device, O_RDWR);
	other.program = &program;
	EXPECT_IS(program_load(other.fd, &program), 0);
	good_job(&other);
	close(other.fd);
}
