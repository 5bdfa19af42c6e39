/* SPDX-License-Identifier: MIT */
/* A program file, as `npusim compile` writes it, in the memory of the host. */
#ifndef NPU_IMAGE_H
#define NPU_IMAGE_H

#include "npu.h"

enum { NPU_FIRST_IO = 2 }; /* regions from here on: the inputs, then the outputs */

struct npu_file {
	struct npu_image image;
	uint32_t inputs, outputs;
	uint64_t *io_bytes;	/* of the elements of each input, then of each output */
	uint64_t *region_bytes;
	unsigned char *bytes;	/* the whole file */
};

/* NULL, or what is wrong with the file; then there is nothing to free. */
const char *npu_read_file(struct npu_file *file, const char *path);
void npu_free_file(struct npu_file *file);

#endif
