/* SPDX-License-Identifier: GPL-2.0 */
/* Helpers for test cases. */
#ifndef CASES_H
#define CASES_H

#include <stdio.h>

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

/* Of the case that runs. */
extern int failures;

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

uint64_t free_bytes(int fd);
struct run prepared(const struct context *context);
void expect_output(const struct context *context, const struct run *run);
struct npu_wait waited(const struct context *context, const struct run *run);
void good_job(const struct context *context);

/* cases_memory.c */
void closes(const struct context *context);
void isolation(const struct context *context);
void mappings(const struct context *context);

/* cases_power.c */
void sleeps(const struct context *context);
void loses(const struct context *context);

#endif
