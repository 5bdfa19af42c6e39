/* SPDX-License-Identifier: MIT */
/* How fast a served device is for a program in C: bench SOCKET [FILE.npu [JOBS]]. Figures on standard output. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "image.h"
#include "npu.h"
#include "npusim.h"

enum { READS = 5001, COPY_BYTES = 100 * 1000 * 1000, COPIES = 5 };

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;

	return (difference > 0) - (difference < 0);
}

static void registers(struct npu *npu)
{
	static double took[READS];

	for (int i = 0; i < READS; i++) {
		double begin = now();
		npu_read(npu, NPU_STATUS);
		took[i] = now() - begin;
	}
	qsort(took, READS, sizeof(*took), by_size);
	printf("register read: median %.1f us, 99 %% within %.1f us\n", 1e6 * took[READS / 2], 1e6 * took[READS * 99 / 100]);
}

/* The first run also creates pages, which is work of the kernel, not of the driver: take the median of several. */
static void copies(struct npu *npu)
{
	size_t bytes = npu->bytes < COPY_BYTES ? npu->bytes : COPY_BYTES;
	char *host = malloc(bytes);
	double to[COPIES], from[COPIES];

	if (!host)
		return;
	memset(host, 1, bytes);
	for (int i = 0; i < COPIES; i++) {
		double begin = now();
		memcpy(npu->memory, host, bytes);
		to[i] = now() - begin;
		begin = now();
		memcpy(host, npu->memory, bytes);
		from[i] = now() - begin;
	}
	printf("%zu bytes through BAR 2: first %.2f GB/s;", bytes, 1e-9 * (double)bytes / to[0]);
	qsort(to, COPIES, sizeof(*to), by_size);
	qsort(from, COPIES, sizeof(*from), by_size);
	printf(" written %.2f GB/s, read %.2f GB/s\n", 1e-9 * (double)bytes / to[COPIES / 2],
	       1e-9 * (double)bytes / from[COPIES / 2]);
	free(host);
}

/* Repeat the same job: it must give the same bytes and take the same number of cycles. */
static int jobs(struct npu *npu, const char *path, long count)
{
	struct npu_file file;
	struct npu_program program;
	struct npu_job job;
	uint64_t cycles = 0, bytes = 0, bad = 0;
	char *first = NULL;
	const char *problem = npu_read_file(&file, path);

	if (problem || npu_load(npu, &file.image, &program)) {
		fprintf(stderr, "bench: %s: %s\n", path, problem ? problem : "cannot be loaded");
		return 1;
	}
	for (uint32_t i = 0; i < file.outputs; i++)
		bytes += file.io_bytes[file.inputs + i];
	double begin = now();
	for (long n = 0; n < count; n++) {
		if (npu_prepare(npu, &program, &job)) {
			fprintf(stderr, "bench: job %ld: device memory does not suffice\n", n);
			return 1;
		}
		for (uint32_t i = 0; i < file.inputs; i++) {
			unsigned char *input = npu_region(npu, &job, NPU_FIRST_IO + i);
			for (uint64_t k = 0; k < file.io_bytes[i]; k++)
				input[k] = (unsigned char)(k % 4 == 3 ? 0x3f : k % 61); /* floats between 0.5 and 1 */
		}
		enum npu_error error = npu_submit(npu, &job, NPU_MEDIUM);
		if (!error)
			error = npu_wait(npu, &job, (uint64_t)1 << 60);
		if (error) {
			fprintf(stderr, "bench: job %ld: error %d, %s\n", n, error, job.text);
			return 1;
		}
		char *found = malloc(bytes + 1), *at = found;
		for (uint32_t i = 0; found && i < file.outputs; i++) {
			uint64_t size = file.io_bytes[file.inputs + i];
			memcpy(at, npu_region(npu, &job, NPU_FIRST_IO + file.inputs + i), size);
			at += size;
		}
		if (!npu_is_there(npu)) {
			fprintf(stderr, "bench: job %ld: the device is gone\n", n);
			return 1;
		}
		if (!first) {
			first = found;
			cycles = job.cycles;
			begin = now();
		} else {
			bad += !found || memcmp(found, first, bytes) || job.cycles != cycles;
			free(found);
		}
		npu_release(npu, &job);
	}
	printf("%ld jobs of %" PRIu64 " cycles: %.0f us each, %" PRIu64 " different from the first\n", count, cycles,
	       1e6 * (now() - begin) / (double)(count > 1 ? count - 1 : 1), bad);
	free(first);
	npu_unload(npu, &program);
	npu_free_file(&file);
	return bad > 0;
}

int main(int count, char **words)
{
	struct npu npu;
	int status = 0;
	enum npu_error error;

	if (count < 2) {
		fprintf(stderr, "usage: bench SOCKET [FILE.npu [JOBS]]\n");
		return 2;
	}
	error = npu_open(&npu, words[1]);
	if (error) {
		fprintf(stderr, "bench: %s: error %d\n", words[1], error);
		return 1;
	}
	registers(&npu);
	copies(&npu);
	if (npu_reset(&npu)) /* the rings lay in what was written over */
		status = 1;
	else if (count > 2)
		status = jobs(&npu, words[2], count > 3 ? strtol(words[3], NULL, 10) : 1000);
	npu_close(&npu);
	return status;
}
