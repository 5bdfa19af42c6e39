/* SPDX-License-Identifier: MIT */
/* Layout of the file: docs/reference/driver-test.md. Every length and number is checked: files come from anywhere. */
#include "image.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, HEADER_BYTES = 72, PAD = 64, MOST_REGIONS = 65520 };
#define LARGEST ((uint64_t)1 << 48) /* bytes of a region */

static const char MAGIC[8] = "NPUSIM\0\x1a";

struct sizes {
	uint32_t format, isa;
	uint64_t part[3]; /* description, code, constants */
};

/* SHA-256, of FIPS 180-4 */

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

struct sha {
	uint32_t state[8];
	unsigned char block[64];
	uint64_t bytes;
};

static uint32_t turn(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static void sha_block(struct sha *sha)
{
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)sha->block[4 * i] << 24 | (uint32_t)sha->block[4 * i + 1] << 16 |
		       (uint32_t)sha->block[4 * i + 2] << 8 | sha->block[4 * i + 3];
	for (int i = 16; i < 64; i++)
		w[i] = w[i - 16] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
		       (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
	memcpy(s, sha->state, sizeof(s));
	for (int i = 0; i < 64; i++) {
		uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
			       ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
		uint32_t two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) +
			       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof(*s));
		s[4] += one;
		s[0] = one + two;
	}
	for (int i = 0; i < 8; i++)
		sha->state[i] += s[i];
}

static void sha_add(struct sha *sha, const void *data, uint64_t bytes)
{
	for (const unsigned char *byte = data; bytes--; byte++) {
		sha->block[sha->bytes++ % 64] = *byte;
		if (sha->bytes % 64 == 0)
			sha_block(sha);
	}
}

static bool sha_is(struct sha *sha, const unsigned char *digest)
{
	uint64_t bits = 8 * sha->bytes;
	unsigned char byte = 0x80, difference = 0;

	do {
		sha_add(sha, &byte, 1);
		byte = 0;
	} while (sha->bytes % 64 != 56);
	for (int i = 0; i < 8; i++) {
		byte = (unsigned char)(bits >> (56 - 8 * i));
		sha_add(sha, &byte, 1);
	}
	for (int i = 0; i < 32; i++)
		difference |= (unsigned char)(sha->state[i / 4] >> (24 - 8 * (i % 4))) ^ digest[i];
	return !difference;
}

/* JSON, as far as a description needs it. Each function advances past what it has parsed, or returns false. */

struct text {
	const char *at, *end;
};

static bool skip(struct text *text, char wanted)
{
	while (text->at < text->end && strchr(" \t\r\n", *text->at) && *text->at)
		text->at++;
	if (text->at == text->end || *text->at != wanted)
		return false;
	text->at++;
	return true;
}

/* A string; its raw characters, with escapes. */
static bool string(struct text *text, struct text *found)
{
	if (!skip(text, '"'))
		return false;
	found->at = text->at;
	while (text->at < text->end && *text->at != '"')
		text->at += *text->at == '\\' && text->end - text->at > 1 ? 2 : 1;
	found->end = text->at;
	return skip(text, '"');
}

static bool number(struct text *text, uint64_t *found)
{
	const char *begin = text->at;

	for (*found = 0; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
		*found = 10 * *found + (uint64_t)(*text->at - '0');
		if (*found > LARGEST)
			return false;
	}
	return text->at > begin;
}

/* Any value: brackets are counted, and what is between them is of no interest. */
static bool any(struct text *text)
{
	struct text ignored;
	int depth = 0;

	do {
		if (text->at == text->end)
			return false;
		if (*text->at == '"') {
			if (!string(text, &ignored))
				return false;
			continue;
		}
		depth += (*text->at == '[' || *text->at == '{') - (*text->at == ']' || *text->at == '}');
		text->at++;
	} while (depth > 0 || (text->at < text->end && !strchr(",]}", *text->at)));
	return depth == 0;
}

static bool is(const struct text *text, const char *word)
{
	return (size_t)(text->end - text->at) == strlen(word) && !memcmp(text->at, word, strlen(word));
}

static uint64_t bytes_of(const struct text *type)
{
	static const struct { const char *name; uint64_t bytes; } TYPES[] = {
		{ "bool", 1 }, { "int8", 1 }, { "uint8", 1 }, { "int16", 2 }, { "uint16", 2 }, { "float16", 2 },
		{ "bfloat16", 2 }, { "int32", 4 }, { "uint32", 4 }, { "float32", 4 }, { "int64", 8 }, { "uint64", 8 },
		{ "float64", 8 },
	};

	for (size_t i = 0; i < sizeof(TYPES) / sizeof(*TYPES); i++) {
		if (is(type, TYPES[i].name))
			return TYPES[i].bytes;
	}
	return 0;
}

/* [name, region, [dimensions], type] */
static bool binding(struct text *text, uint64_t *bytes)
{
	struct text name, type;
	uint64_t region, size, count = 1;

	if (!skip(text, '[') || !string(text, &name) || !skip(text, ',') || !number(text, &region) ||
	    !skip(text, ',') || !skip(text, '['))
		return false;
	for (bool first = true; !skip(text, ']'); first = false) {
		if ((!first && !skip(text, ',')) || !number(text, &size) || (size && count > LARGEST / size))
			return false;
		count *= size;
	}
	if (!skip(text, ',') || !string(text, &type) || !skip(text, ']') || !bytes_of(&type) || count > LARGEST / 8)
		return false;
	*bytes = count * bytes_of(&type);
	return true;
}

static bool size_of_region(struct text *text, uint64_t *bytes)
{
	return number(text, bytes);
}

/* A list; the number of its elements, in memory that the caller frees. */
static bool list(struct text *text, bool (*element)(struct text *, uint64_t *), uint64_t **found, uint32_t *count)
{
	uint32_t room = 0;

	if (*found || !skip(text, '['))
		return false;
	for (*count = 0; !skip(text, ']'); ++*count) {
		if (*count == room) {
			uint64_t *more = realloc(*found, (room = room ? 2 * room : 16) * sizeof(**found));
			if (!more)
				return false;
			*found = more;
		}
		if (*count == MOST_REGIONS || (*count && !skip(text, ',')) || !element(text, *found + *count))
			return false;
	}
	return true;
}

static const char *describe(struct npu_file *file, struct text text)
{
	uint64_t *inputs = NULL, *outputs = NULL, **lists[3] = { &file->region_bytes, &inputs, &outputs };
	const char *names[3] = { "regions", "inputs", "outputs" }, *problem = NULL;
	uint32_t counts[3] = { 0 };
	struct text name;
	bool good = skip(&text, '{'), states = false, timing = false;

	while (good && !skip(&text, '}')) {
		int which = 0;
		good = string(&text, &name) && skip(&text, ':');
		while (which < 3 && !is(&name, names[which]))
			which++;
		if (good && is(&name, "states"))
			states = text.end - text.at < 2 || memcmp(text.at, "[]", 2);
		timing |= good && is(&name, "timing_only");
		if (good)
			good = which < 3 ? list(&text, which ? binding : size_of_region, lists[which], counts + which) :
					   any(&text);
		good = good && (skip(&text, ',') || (text.at < text.end && *text.at == '}'));
	}
	if (!good || counts[0] != NPU_FIRST_IO + counts[1] + counts[2])
		problem = "its description does not make sense";
	else if (states)
		problem = "has inputs that grow where they lie, which this driver does not do";
	else if (timing)
		problem = "was compiled for timing alone, without its constants";
	file->image.regions = counts[0];
	file->inputs = counts[1];
	file->outputs = counts[2];
	file->io_bytes = problem ? NULL : malloc((counts[1] + counts[2]) * sizeof(uint64_t) + 1);
	if (!problem && !file->io_bytes)
		problem = "is too large for this machine";
	for (uint32_t i = 0; !problem && i < counts[1] + counts[2]; i++) {
		file->io_bytes[i] = i < counts[1] ? inputs[i] : outputs[i - counts[1]];
		if (file->io_bytes[i] > file->region_bytes[NPU_FIRST_IO + i])
			problem = "has an input or output that is larger than its region";
	}
	free(inputs);
	free(outputs);
	return problem;
}

static const char *check(struct npu_file *file, uint64_t bytes)
{
	struct sha sha = { .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
	struct sizes sizes;
	const unsigned char *part[3];
	uint64_t at = HEADER_BYTES;

	if (bytes < HEADER_BYTES || memcmp(file->bytes, MAGIC, sizeof(MAGIC)))
		return "is no program file";
	memcpy(&sizes, file->bytes + sizeof(MAGIC), sizeof(sizes));
	if (sizes.format != FORMAT)
		return "has another format than this driver reads";
	for (int i = 0; i < 3; i++) {
		at = (at + PAD - 1) / PAD * PAD;
		if (at > bytes || sizes.part[i] > bytes - at)
			return "is truncated";
		part[i] = file->bytes + at;
		at += sizes.part[i];
	}
	if (sizes.part[1] > UINT32_MAX)
		return "has more instructions than a ring entry can name";
	sha_add(&sha, &sizes, sizeof(sizes));
	for (int i = 0; i < 3; i++)
		sha_add(&sha, part[i], sizes.part[i]);
	if (!sha_is(&sha, file->bytes + sizeof(MAGIC) + sizeof(sizes)))
		return "has been altered: its checksum does not match";
	const char *problem = describe(file, (struct text){ (const char *)part[0], (const char *)part[0] + sizes.part[0] });
	if (problem)
		return problem;
	if (sizes.part[2] > file->region_bytes[0])
		return "has more constants than its region holds";
	file->image.code = part[1];
	file->image.constants = part[2];
	file->image.code_bytes = sizes.part[1];
	file->image.constant_bytes = sizes.part[2];
	file->image.isa = sizes.isa;
	file->image.region_bytes = file->region_bytes;
	return NULL;
}

const char *npu_read_file(struct npu_file *file, const char *path)
{
	const char *problem = "cannot be read";
	FILE *source = fopen(path, "rb");
	long bytes = -1;

	*file = (struct npu_file){ 0 };
	if (source && !fseek(source, 0, SEEK_END) && (bytes = ftell(source)) >= 0 && !fseek(source, 0, SEEK_SET))
		file->bytes = malloc((size_t)bytes + 1);
	if (file->bytes && fread(file->bytes, 1, (size_t)bytes, source) == (size_t)bytes)
		problem = check(file, (uint64_t)bytes);
	if (source)
		fclose(source);
	if (problem)
		npu_free_file(file);
	return problem;
}

void npu_free_file(struct npu_file *file)
{
	free(file->io_bytes);
	free(file->region_bytes);
	free(file->bytes);
	*file = (struct npu_file){ 0 };
}
