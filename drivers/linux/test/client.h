/* SPDX-License-Identifier: GPL-2.0 */
/* A client of /dev/npuN: its calls as functions, and programs that npusim has compiled. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../npu_uapi.h"

/* A program file, read and checked, and its state on the device. */
struct program {
	unsigned char *file;
	const unsigned char *code;
	const unsigned char *constants;
	uint64_t code_bytes;
	uint64_t constants_bytes;
	unsigned int inputs;
	unsigned int outputs;
	unsigned int region_count;
	uint64_t *regions;	/* bytes of each: constants, scratch, inputs, outputs */
	uint64_t code_at;	/* on the device; 0: not loaded */
	uint64_t constants_at;
	uint32_t residents;	/* the number of its weights that stay in SRAM; 0: none */
};

/* One run of a program, with its own memory. */
struct run {
	const struct program *program;
	struct npu_region *table;
	uint64_t seqno;
};

/* Each returns 0 or -errno. */
int client_alloc(int fd, uint64_t bytes, uint64_t *address);
int client_free(int fd, uint64_t address);
int client_put(int fd, uint64_t address, const void *from, uint64_t bytes);
int client_get(int fd, void *to, uint64_t address, uint64_t bytes);
int client_submit(int fd, struct npu_submit *args);
int client_wait(int fd, uint64_t seqno, int64_t timeout_ns, struct npu_wait *result);
int client_abort(int fd, uint64_t seqno);

/* What is wrong with the file, or NULL. */
const char *program_read(struct program *program, const char *path);
void program_drop(struct program *program);
int program_load(int fd, struct program *program);
int program_unload(int fd, struct program *program);

int run_new(int fd, const struct program *program, struct run *run);
void run_free(int fd, struct run *run);
int run_put(int fd, const struct run *run, unsigned int input, const void *data);
int run_get(int fd, const struct run *run, unsigned int output, void *data);
int run_submit(int fd, struct run *run, unsigned int priority, unsigned int flags);

/* The bytes of a file, followed by a zero, or NULL. */
unsigned char *read_file(const char *path, size_t *bytes);

int fuzz(const char *device, const struct program *program, unsigned long calls, uint64_t seed);
/* channel.c; folder: NULL for standard input. answer() returns 0. */
void channel_open(const char *folder);
int answer(const char *format, ...);
bool next_line(char **line, size_t *room);

int serve(const char *device, const char *folder);
int cases(const char *device, const char *name, struct program *program, const unsigned char *input,
	  const unsigned char *golden);

#endif
