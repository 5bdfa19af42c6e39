/* SPDX-License-Identifier: MIT */
/* The driver program for `npusim driver-test`: commands on standard input, one answer per command on standard output.
 * docs/reference/driver-test.md defines them. It can also be used by hand. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "npu.h"

#define PREFIX "vfio-user:"
#define OWN_TIMEOUT_PS ((uint64_t)10 * 1000 * 1000 * 1000 * 1000) /* 10 s */
enum { MOST_PROGRAMS = 64, MOST_JOBS = 1024 };

struct loaded {
	bool there;
	struct npu_file file;
	struct npu_program program;
};

struct running {
	struct running *next;
	struct npu_job job;
	struct loaded *loaded;
	char **outputs; /* names of files */
};

static struct npu npu;
static bool opened;
static struct loaded programs[MOST_PROGRAMS];
static int newest = -1;
static struct running *jobs;

static bool fail(const char *code, const char *text)
{
	printf("error %s %s\n", code, text);
	return false;
}

static bool fail_with(enum npu_error error, const struct npu_job *job)
{
	static const char *const CODES[] = { "", "MEMORY", "FULL", "FAULT", "TIMEOUT", "ABORTED", "GONE", "DEVICE" };
	static const char *const TEXTS[] = { "", "device memory does not suffice", "the ring holds no more jobs", "",
					     "the job did not end in its time", "the job was aborted",
					     "the device is not there", "not a device that this driver is for" };

	if (error != NPU_FAULT)
		return fail(CODES[error], TEXTS[error]);
	printf("error FAULT %" PRIu32 " at %#" PRIx64 ": ", job->fault, job->fault_address);
	for (const char *c = job->text; *c; c++)
		putchar(*c < ' ' && *c >= 0 ? ' ' : *c);
	putchar('\n');
	return false;
}

static void forget(struct running *gone)
{
	struct running **at = &jobs;

	while (*at != gone)
		at = &(*at)->next;
	*at = gone->next;
	npu_release(&npu, &gone->job);
	for (char **name = gone->outputs; *name; name++)
		free(*name);
	free(gone->outputs);
	free(gone);
}

static void unload(struct loaded *loaded)
{
	npu_unload(&npu, &loaded->program);
	npu_free_file(&loaded->file);
	loaded->there = false;
}

static void close_all(void)
{
	if (!opened)
		return;
	npu_reset(&npu);
	while (jobs)
		forget(jobs);
	for (int i = 0; i < MOST_PROGRAMS; i++) {
		if (programs[i].there)
			unload(programs + i);
	}
	npu_close(&npu);
	opened = false;
	newest = -1;
}

static bool do_open(char **words, int count)
{
	enum npu_error error;

	if (count != 2)
		return fail("USAGE", "open ENDPOINT");
	if (strncmp(words[1], PREFIX, strlen(PREFIX)))
		return fail("UNSUPPORTED", "endpoints must be " PREFIX "SOCKET");
	close_all();
	error = npu_open(&npu, words[1] + strlen(PREFIX));
	if (error)
		return fail_with(error, NULL);
	opened = true;
	puts("ok");
	return true;
}

static bool do_load(char **words, int count)
{
	const char *problem;
	enum npu_error error;
	int at = 0;

	if (count != 2)
		return fail("USAGE", "load FILE.npu");
	while (at < MOST_PROGRAMS && programs[at].there)
		at++;
	if (at == MOST_PROGRAMS)
		return fail("MEMORY", "no more programs can be loaded");
	problem = npu_read_file(&programs[at].file, words[1]);
	if (problem) {
		printf("error FILE %s: %s\n", words[1], problem);
		return false;
	}
	error = npu_load(&npu, &programs[at].file.image, &programs[at].program);
	if (error) {
		npu_free_file(&programs[at].file);
		return error == NPU_DEVICE ? fail("FILE", "the program is for another instruction set") :
					     fail_with(error, NULL);
	}
	programs[at].there = true;
	newest = at;
	printf("ok %d\n", at + 1);
	return true;
}

static struct loaded *program_of(const char *word)
{
	long number = word ? strtol(word, NULL, 10) : newest + 1;

	return number >= 1 && number <= MOST_PROGRAMS && programs[number - 1].there ? programs + number - 1 : NULL;
}

static bool do_unload(char **words, int count)
{
	struct loaded *loaded = count == 2 ? program_of(words[1]) : NULL;

	if (!loaded)
		return fail("USAGE", "there is no such program");
	for (struct running *each = jobs; each; each = each->next) {
		if (each->loaded == loaded)
			return fail("USAGE", "the program is running");
	}
	unload(loaded);
	puts("ok");
	return true;
}

/* Read a whole file into a block of memory. */
static bool read_input(const char *name, void *memory, uint64_t bytes, uint64_t number)
{
	FILE *file = fopen(name, "rb");
	char more, text[160];
	size_t got;
	bool whole;

	if (!file)
		return fail("FILE", name);
	got = fread(memory, 1, bytes, file);
	whole = got == bytes && fread(&more, 1, 1, file) == 0;
	fclose(file);
	snprintf(text, sizeof(text), "input %" PRIu64 " must have %" PRIu64 " bytes", number, bytes);
	return whole || fail("INPUT", text);
}

static struct running *start(char **words, int count, bool classes)
{
	static const char *const CLASSES[] = { "low", "medium", "high" };
	struct loaded *loaded;
	int at = 1, ring = NPU_MEDIUM, arrow, inputs, outputs;
	struct running *made;
	enum npu_error error = NPU_OK;
	char text[160];

	loaded = program_of(at < count && words[at][0] == '@' ? words[at] + 1 : NULL);
	at += at < count && words[at][0] == '@';
	for (int i = 0; classes && at < count && i < NPU_PRIORITIES; i++) {
		if (!strcmp(words[at], CLASSES[i])) {
			ring = i;
			at++;
			break;
		}
	}
	for (arrow = at; arrow < count && strcmp(words[arrow], "->"); arrow++)
		;
	if (!loaded || arrow == count) {
		fail("USAGE", loaded ? "IN.bin ... -> OUT.bin ..." : "there is no such program");
		return NULL;
	}
	inputs = arrow - at;
	outputs = count - arrow - 1;
	if ((uint32_t)inputs != loaded->file.inputs || (uint32_t)outputs != loaded->file.outputs) {
		snprintf(text, sizeof(text), "the program has %" PRIu32 " inputs and %" PRIu32 " outputs, got %d and %d",
			 loaded->file.inputs, loaded->file.outputs, inputs, outputs);
		fail("INPUT", text);
		return NULL;
	}
	made = calloc(1, sizeof(*made));
	if (made)
		made->outputs = calloc((size_t)outputs + 1, sizeof(char *));
	if (made && made->outputs)
		error = npu_prepare(&npu, &loaded->program, &made->job);
	if (!made || !made->outputs || error) {
		if (made)
			free(made->outputs);
		free(made);
		fail_with(NPU_MEMORY, NULL);
		return NULL;
	}
	made->loaded = loaded;
	made->next = jobs;
	jobs = made;
	for (int i = 0; i < outputs; i++)
		made->outputs[i] = strdup(words[arrow + 1 + i]);
	for (int i = 0; i < inputs; i++) {
		uint32_t region = NPU_FIRST_IO + (uint32_t)i;
		if (!read_input(words[at + i], npu_region(&npu, &made->job, region), loaded->file.io_bytes[i], (uint64_t)i)) {
			forget(made);
			return NULL;
		}
	}
	error = npu_submit(&npu, &made->job, (enum npu_class)ring);
	if (error) {
		fail_with(error, NULL);
		forget(made);
		return NULL;
	}
	return made;
}

static bool finish(struct running *running, uint64_t timeout_ps)
{
	enum npu_error error = npu_wait(&npu, &running->job, timeout_ps);
	struct npu_file *file = &running->loaded->file;
	bool good = !error || fail_with(error, &running->job);

	for (uint32_t i = 0; good && i < file->outputs; i++) {
		uint64_t bytes = file->io_bytes[file->inputs + i];
		FILE *target = running->outputs[i] ? fopen(running->outputs[i], "wb") : NULL;
		size_t done = 0;
		if (target)
			done = fwrite(npu_region(&npu, &running->job, NPU_FIRST_IO + file->inputs + i), 1, bytes, target);
		if (!target || fclose(target) || done != bytes)
			good = fail("FILE", running->outputs[i] ? running->outputs[i] : "no name");
	}
	if (good && !npu_is_there(&npu))
		good = fail_with(NPU_GONE, NULL);
	if (good)
		printf("ok %" PRIu64 "\n", running->job.cycles);
	forget(running);
	return good;
}

static struct running *job_of(const char *word)
{
	uint64_t seqno = strtoull(word, NULL, 10);
	struct running *each = jobs;

	while (each && each->job.seqno != seqno)
		each = each->next;
	return each;
}

static bool obey(char **words, int count)
{
	const char *verb = words[0];
	struct running *running;
	enum npu_error error;

	if (!strcmp(verb, "open"))
		return do_open(words, count);
	if (!strcmp(verb, "close")) {
		close_all();
		puts("ok");
		return true;
	}
	if (!opened)
		return fail("USAGE", "open first");
	if (!strcmp(verb, "load"))
		return do_load(words, count);
	if (!strcmp(verb, "unload"))
		return do_unload(words, count);
	if (!strcmp(verb, "run")) {
		running = start(words, count, false);
		return running && finish(running, OWN_TIMEOUT_PS);
	}
	if (!strcmp(verb, "submit")) {
		running = start(words, count, true);
		if (running)
			printf("ok %" PRIu64 "\n", running->job.seqno);
		return running;
	}
	if (!strcmp(verb, "wait") || !strcmp(verb, "abort")) {
		running = count == (*verb == 'w' ? 3 : 2) ? job_of(words[1]) : NULL;
		if (!running)
			return fail("USAGE", "there is no such job");
		if (*verb == 'w')
			return finish(running, strtoull(words[2], NULL, 10));
		error = npu_abort(&npu, &running->job);
	} else if (!strcmp(verb, "reset")) {
		error = npu_reset(&npu);
	} else {
		return fail("USAGE", "no such command");
	}
	if (error)
		return fail_with(error, NULL);
	puts("ok");
	return true;
}

int main(void)
{
	char *line = NULL, **words = NULL;
	size_t room = 0;
	ssize_t length;

	while ((length = getline(&line, &room, stdin)) > 0) {
		int count = 0;
		char **more = realloc(words, ((size_t)length + 1) * sizeof(char *));
		if (!more)
			break;
		words = more;
		for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n"))
			words[count++] = word;
		if (count)
			obey(words, count);
		fflush(stdout);
	}
	close_all();
	free(words);
	free(line);
	return 0;
}
