// SPDX-License-Identifier: GPL-2.0
/* Program files: see "What is in a program file" in docs/reference/driver-test.md. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define HEADER_BYTES 72
#define ALIGNMENT 64
#define FIRST_IO 2
#define MOST_REGIONS 65520

unsigned char *read_file(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	unsigned char *data = NULL;
	size_t room = 0;

	*bytes = 0;
	if (!file)
		return NULL;
	do {
		unsigned char *grown = realloc(data, room + 65536 + 1);

		if (!grown)
			break;
		data = grown;
		room += 65536;
		*bytes += fread(data + *bytes, 1, room - *bytes, file);
	} while (*bytes == room);
	if (ferror(file) || *bytes == room) {
		free(data);
		data = NULL;
	} else {
		data[*bytes] = 0;
	}
	fclose(file);
	return data;
}

static uint64_t number(const unsigned char *at, int bytes)
{
	uint64_t value = 0;

	while (bytes--)
		value = value << 8 | at[bytes];
	return value;
}

/* What follows a key of the description, or NULL. Quotes in strings have a backslash: no string looks like a key. */
static const char *value_of(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? at + strlen(key) : NULL;
}

/* The rows of a list of lists; -1 if it does not end. Brackets in strings do not count. */
static int rows(const char *at)
{
	int depth = 1, count = 0;
	bool quoted = false;

	for (; *at && depth; at++) {
		if (quoted) {
			if (*at == '\\' && at[1])
				at++;
			else if (*at == '"')
				quoted = false;
		} else if (*at == '"') {
			quoted = true;
		} else if (*at == '[') {
			count += depth++ == 1;
		} else if (*at == ']') {
			depth--;
		}
	}
	return depth ? -1 : count;
}

static bool read_regions(struct program *program, const char *at)
{
	program->regions = calloc(MOST_REGIONS, sizeof(*program->regions));
	while (program->regions && *at != ']' && program->region_count < MOST_REGIONS) {
		char *end;

		program->regions[program->region_count++] = strtoull(at, &end, 10);
		if (end == at)
			return false;
		at = end + (*end == ',');
	}
	return program->regions && *at == ']';
}

static const char *read_description(struct program *program, const char *text)
{
	const char *regions = value_of(text, "\"regions\":["), *inputs = value_of(text, "\"inputs\":[");
	const char *outputs = value_of(text, "\"outputs\":[");
	int in, out;

	if (!regions || !inputs || !outputs || !read_regions(program, regions))
		return "its description lacks regions, inputs or outputs";
	in = rows(inputs);
	out = rows(outputs);
	if (in < 0 || out < 0 || program->region_count != (unsigned int)(FIRST_IO + in + out))
		return "its inputs and outputs do not have a region each";
	program->inputs = (unsigned int)in;
	program->outputs = (unsigned int)out;
	return NULL;
}

const char *program_read(struct program *program, const char *path)
{
	uint64_t lengths[3], at[4] = { HEADER_BYTES };
	const char *wrong;
	size_t bytes;
	char *text;

	memset(program, 0, sizeof(*program));
	program->file = read_file(path, &bytes);
	if (!program->file)
		return "it cannot be read";
	if (bytes < HEADER_BYTES || memcmp(program->file, "NPUSIM\0\x1a", 8))
		return "it is no program of npusim";
	for (int i = 0; i < 3; i++) {
		lengths[i] = number(program->file + 16 + 8 * i, 8);
		at[i] = (at[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
		if (lengths[i] > bytes || at[i] + lengths[i] > bytes)
			return "it is truncated";
		at[i + 1] = at[i] + lengths[i];
	}
	program->code = program->file + at[1];
	program->code_bytes = lengths[1];
	program->constants = program->file + at[2];
	program->constants_bytes = lengths[2];
	text = malloc(lengths[0] + 1);
	if (!text)
		return "there is no memory for it";
	memcpy(text, program->file + at[0], lengths[0]);
	text[lengths[0]] = 0;
	wrong = read_description(program, text);
	free(text);
	if (!wrong && program->constants_bytes > program->regions[0])
		wrong = "its constants do not fit their region";
	return wrong;
}

void program_drop(struct program *program)
{
	free(program->file);
	free(program->regions);
	memset(program, 0, sizeof(*program));
}
