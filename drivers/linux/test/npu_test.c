// SPDX-License-Identifier: GPL-2.0
/* The test program of the driver for the NPU that npusim simulates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define DEVICE "/dev/npu0"

static const char usage[] =
	"npu_test cases NAME PROGRAM.npu INPUT.bin GOLDEN.bin   a case of cases.c, or all\n"
	"npu_test fuzz PROGRAM.npu CALLS SEED                   random calls\n"
	"npu_test serve [FOLDER]                                commands of npusim driver-test, on standard input or as files\n"
	"Environment: NPU_DEVICE, else " DEVICE "\n";

static int fail(const char *path, const char *why)
{
	fprintf(stderr, "npu_test: %s: %s\n", path, why);
	return 2;
}

static int run_cases(const char *device, char **args)
{
	struct program program;
	const char *wrong = program_read(&program, args[1]);
	unsigned char *input, *golden;
	size_t in, out;
	int failed;

	if (wrong)
		return fail(args[1], wrong);
	if (program.inputs != 1 || program.outputs != 1)
		return fail(args[1], "must have one input and one output");
	input = read_file(args[2], &in);
	golden = read_file(args[3], &out);
	if (!input || in != program.regions[2])
		return fail(args[2], "is not the program's input");
	if (!golden || out != program.regions[3])
		return fail(args[3], "is not the program's output");
	failed = cases(device, args[0], &program, input, golden);
	if (failed < 0)
		return fail(args[0], "there is no such case");
	free(input);
	free(golden);
	program_drop(&program);
	return failed != 0;
}

int main(int count, char **args)
{
	const char *device = getenv("NPU_DEVICE") ? getenv("NPU_DEVICE") : DEVICE;

	if (count == 6 && !strcmp(args[1], "cases"))
		return run_cases(device, args + 2);
	if ((count == 2 || count == 3) && !strcmp(args[1], "serve"))
		return serve(device, args[2]);
	if (count == 5 && !strcmp(args[1], "fuzz")) {
		struct program program;
		const char *wrong = program_read(&program, args[2]);

		if (wrong)
			return fail(args[2], wrong);
		return fuzz(device, &program, strtoul(args[3], NULL, 10), strtoull(args[4], NULL, 10));
	}
	fputs(usage, stderr);
	return 2;
}
