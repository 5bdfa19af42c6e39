// SPDX-License-Identifier: GPL-2.0
/*
 * The driver under test of `npusim driver-test`: one command a line on standard
 * input, one answer a line on standard output. See docs/reference/driver-test.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client.h"

#define FIRST_SLOT "/sys/bus/pci/devices/0000:00:00.0"
#define MOST_WORDS 512
#define MOST_PROGRAMS 64
#define MOST_JOBS 512
#define RUN_TIMEOUT_NS 60000000000LL

struct job {
	struct run run;
	char **outputs;
	unsigned int output_count;
};

static const char *device;
static int fd = -1;
static struct program programs[MOST_PROGRAMS];
static int users[MOST_PROGRAMS];	/* jobs of each */
static int last_program = -1;
static struct job jobs[MOST_JOBS];

static const char *const classes[] = { "low", "medium", "high" };
static const char *const faults[] = { "NONE", "RING", "PROGRAM", "ADDRESS", "DATA", "DEADLOCK", "DMA", "INTERNAL",
				      "HOST", "ECC" };

/* What errno means to the suite. */
static int refuse(int err, const char *what)
{
	const char *code = "USAGE";

	switch (-err) {
	case ENOMEM:
		code = "MEMORY";
		break;
	case EAGAIN:
	case ENOBUFS:
		code = "FULL";
		break;
	case ENODEV:
	case ENXIO:
	case ENOENT:
		code = "GONE";
		break;
	case EIO:
		code = "DEVICE";
		break;
	}
	return answer("error %s %s: %s", code, what, strerror(-err));
}

static void drop_job(struct job *job)
{
	for (unsigned int i = 0; i < job->output_count; i++)
		free(job->outputs[i]);
	free(job->outputs);
	if (job->run.program)
		users[job->run.program - programs]--;
	if (job->run.table)
		run_free(fd, &job->run);
	memset(job, 0, sizeof(*job));
}

static void close_all(void)
{
	for (int i = 0; i < MOST_JOBS; i++)
		if (jobs[i].run.program) {
			struct npu_wait result;

			client_abort(fd, jobs[i].run.seqno);
			client_wait(fd, jobs[i].run.seqno, RUN_TIMEOUT_NS, &result);
			drop_job(&jobs[i]);
		}
	for (int i = 0; i < MOST_PROGRAMS; i++)
		program_drop(&programs[i]);
	if (fd >= 0)
		close(fd);
	fd = -1;
	last_program = -1;
}

static int do_open(void)
{
	close_all();
	fd = open(device, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		return answer("ok");
	/* On the bus, but not bound by the driver. */
	if (errno == ENOENT && !access(FIRST_SLOT, F_OK))
		return answer("error DEVICE %s is not there, see the kernel's log", device);
	return refuse(-errno, device);
}

static int do_load(const char *path)
{
	const char *wrong;
	int i = 0, err;

	while (i < MOST_PROGRAMS && programs[i].file)
		i++;
	if (i == MOST_PROGRAMS)
		return answer("error UNSUPPORTED more than %d programs", MOST_PROGRAMS);
	wrong = program_read(&programs[i], path);
	if (wrong) {
		program_drop(&programs[i]);
		return answer("error FILE %s: %s", path, wrong);
	}
	err = program_load(fd, &programs[i]);
	if (!err) {
		/* What its runs need is taken here once, so that a program that cannot run is refused. */
		struct run run;

		err = run_new(fd, &programs[i], &run);
		if (err)
			program_unload(fd, &programs[i]);
		else
			run_free(fd, &run);
	}
	if (err) {
		program_drop(&programs[i]);
		return refuse(err, path);
	}
	last_program = i;
	return answer("ok %d", i + 1);
}

static int program_number(const char *word)
{
	char *end;
	long number = strtol(word, &end, 10);

	if (end == word || *end || number < 1 || number > MOST_PROGRAMS || !programs[number - 1].file)
		return -1;
	return (int)number - 1;
}

static int do_unload(const char *word)
{
	int i = program_number(word), err;

	if (i < 0)
		return answer("error USAGE there is no program %s", word);
	if (users[i])
		return answer("error USAGE program %s is running", word);
	err = program_unload(fd, &programs[i]);
	program_drop(&programs[i]);
	return err ? refuse(err, "unload") : answer("ok");
}

/* Read an input file into its region; 0, or -1 when it has been answered. */
static int put_input(const struct run *run, unsigned int input, const char *path)
{
	uint64_t wanted = run->table[2 + input].bytes;
	unsigned char *data;
	size_t bytes;
	int err;

	data = read_file(path, &bytes);
	if (!data)
		return answer("error FILE %s: %s", path, strerror(errno)) - 1;
	if (bytes != wanted) {
		free(data);
		return answer("error INPUT %s: input %u takes %llu bytes, got %zu", path, input,
			      (unsigned long long)wanted, bytes) - 1;
	}
	err = run_put(fd, run, input, data);
	free(data);
	return err ? refuse(err, path) - 1 : 0;
}

static int arrow(char **words, int count)
{
	int i = 0;

	while (i < count && strcmp(words[i], "->"))
		i++;
	return i;
}

/* [@PROGRAM] [CLASS] IN ... -> OUT ...: a job, or NULL when it has been answered. */
static struct job *start(char **words, int count)
{
	int number = last_program, priority = NPU_CLASS_MEDIUM, middle, err;
	struct job *job = jobs;

	if (count && words[0][0] == '@') {
		number = program_number(words[0] + 1);
		words++;
		count--;
	}
	for (int i = 0; count && i < NPU_PRIORITIES; i++) {
		if (!strcmp(words[0], classes[i])) {
			priority = i;
			words++;
			count--;
			break;
		}
	}
	middle = arrow(words, count);
	if (number < 0 || middle == count)
		return answer("error USAGE %s", number < 0 ? "there is no such program" : "'->' is missing"), NULL;
	if ((unsigned int)middle != programs[number].inputs ||
	    (unsigned int)(count - middle - 1) != programs[number].outputs)
		return answer("error INPUT the program takes %u inputs and gives %u outputs, got %d and %d",
			      programs[number].inputs, programs[number].outputs, middle, count - middle - 1), NULL;
	while (job < jobs + MOST_JOBS && job->run.program)
		job++;
	if (job == jobs + MOST_JOBS)
		return answer("error FULL %d jobs", MOST_JOBS), NULL;

	err = run_new(fd, &programs[number], &job->run);
	if (err) {
		memset(job, 0, sizeof(*job));
		refuse(err, "run");
		return NULL;
	}
	users[number]++;
	for (int i = 0; i < middle; i++) {
		if (put_input(&job->run, (unsigned int)i, words[i])) {
			drop_job(job);
			return NULL;
		}
	}
	job->outputs = calloc(programs[number].outputs + 1, sizeof(*job->outputs));
	for (int i = middle + 1; i < count && job->outputs; i++)
		job->outputs[job->output_count++] = strdup(words[i]);
	err = run_submit(fd, &job->run, (unsigned int)priority, 0);
	if (err) {
		drop_job(job);
		refuse(err, "submit");
		return NULL;
	}
	return job;
}

static int write_output(const struct job *job, unsigned int output)
{
	uint64_t bytes = job->run.table[2 + job->run.program->inputs + output].bytes;
	unsigned char *data = malloc(bytes + 1);
	FILE *file;
	int err = data ? run_get(fd, &job->run, output, data) : -ENOMEM;

	if (!err) {
		file = fopen(job->outputs[output], "wb");
		if (!file || fwrite(data, 1, bytes, file) != bytes)
			err = answer("error FILE %s: %s", job->outputs[output], strerror(errno)) - 1;
		if (file && fclose(file) && !err)
			err = answer("error FILE %s: %s", job->outputs[output], strerror(errno)) - 1;
	} else {
		err = refuse(err, job->outputs[output]) - 1;
	}
	free(data);
	return err;
}

static int finish(struct job *job, int64_t timeout_ns)
{
	struct npu_wait result;
	int err = client_wait(fd, job->run.seqno, timeout_ns, &result);

	if (err == -ETIME) {	/* the suite's own time, shorter than the driver's */
		client_abort(fd, job->run.seqno);
		err = client_wait(fd, job->run.seqno, RUN_TIMEOUT_NS, &result);
		if (!err && result.status == NPU_ENDED_ABORTED)
			result.status = NPU_ENDED_TIMEOUT;
	}
	if (err) {
		refuse(err, "wait");
	} else if (result.status == NPU_ENDED_DONE) {
		for (unsigned int i = 0; i < job->output_count && !err; i++)
			err = write_output(job, i);
		if (!err)
			answer("ok %llu", (unsigned long long)result.cycles);
	} else if (result.status == NPU_ENDED_FAULT) {
		answer("error FAULT %s at %#llx: %s",
		       result.fault_code < sizeof(faults) / sizeof(*faults) ? faults[result.fault_code] : "?",
		       (unsigned long long)result.fault_address, result.text);
	} else {
		static const char *const codes[] = { "", "", "", "ABORTED", "TIMEOUT", "ABORTED", "GONE" };

		answer("error %s %s", codes[result.status], result.text);
	}
	drop_job(job);
	return 0;
}

static struct job *job_of(const char *word)
{
	char *end;
	unsigned long long seqno = strtoull(word, &end, 10);

	for (int i = 0; i < MOST_JOBS && end != word && !*end; i++)
		if (jobs[i].run.program && jobs[i].run.seqno == seqno)
			return &jobs[i];
	answer("error USAGE there is no job %s", word);
	return NULL;
}

static int command(char **words, int count)
{
	const char *verb = words[0];
	struct job *job;

	if (!strcmp(verb, "open") && count == 2)
		return do_open();
	if (!strcmp(verb, "close") && count == 1) {
		close_all();
		return answer("ok");
	}
	if (fd < 0)
		return answer("error USAGE %s before open", verb);
	if (!strcmp(verb, "load") && count == 2)
		return do_load(words[1]);
	if (!strcmp(verb, "unload") && count == 2)
		return do_unload(words[1]);
	if (!strcmp(verb, "reset") && count == 1)
		return ioctl(fd, NPU_IOC_RESET) ? refuse(-errno, "reset") : answer("ok");
	if (!strcmp(verb, "run") || !strcmp(verb, "submit")) {
		job = start(words + 1, count - 1);
		if (!job)
			return 0;
		return verb[0] == 'r' ? finish(job, RUN_TIMEOUT_NS) :
					answer("ok %llu", (unsigned long long)job->run.seqno);
	}
	if ((!strcmp(verb, "wait") && count == 3) || (!strcmp(verb, "abort") && count == 2)) {
		job = job_of(words[1]);
		if (!job)
			return 0;
		if (verb[0] == 'w')
			return finish(job, (int64_t)(strtoull(words[2], NULL, 10) / 1000));
		return client_abort(fd, job->run.seqno) ? answer("error USAGE it has ended") : answer("ok");
	}
	return answer("error USAGE %s with %d words", verb, count);
}

int serve(const char *path, const char *shared)
{
	char *line = NULL, *words[MOST_WORDS];
	size_t room = 0;

	device = path;
	channel_open(shared);
	while (next_line(&line, &room)) {
		int count = 0;

		for (char *word = strtok(line, " \r\n"); word && count < MOST_WORDS; word = strtok(NULL, " \r\n"))
			words[count++] = word;
		if (count)
			command(words, count);
		else
			answer("error USAGE an empty line");
	}
	close_all();
	free(line);
	return 0;
}
