// SPDX-License-Identifier: GPL-2.0
/*
 * How commands come and answers go: a line each on standard input and output or,
 * where a kernel has no input, as files of a folder that it shares with its host:
 * 1.command, 2.command and so on, 1.answer and so on.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#include "client.h"

/* Time of the kernel, in which jobs go on: as little as may be. */
#define POLL_US 1
#define SLACK_NS 1

static const char *folder;
static unsigned int turn;

void channel_open(const char *shared)
{
	struct termios mode;

	folder = shared;
	prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
	if (!folder && !tcgetattr(STDIN_FILENO, &mode)) {	/* a console: neither echo nor carriage returns */
		cfmakeraw(&mode);
		tcsetattr(STDIN_FILENO, TCSANOW, &mode);
	}
}

int answer(const char *format, ...)
{
	char part[PATH_MAX], whole[PATH_MAX];
	FILE *out = stdout;
	va_list args;

	if (folder) {
		snprintf(part, sizeof(part), "%s/part", folder);
		snprintf(whole, sizeof(whole), "%s/%u.answer", folder, turn);
		out = fopen(part, "w");
		if (!out)
			exit(1);
	}
	va_start(args, format);
	vfprintf(out, format, args);
	va_end(args);
	fprintf(out, "\n");
	fflush(out);
	if (folder && (fclose(out) || rename(part, whole)))
		exit(1);
	return 0;
}

/* The next command; false when there is no more. */
bool next_line(char **line, size_t *room)
{
	char path[PATH_MAX];
	FILE *in = NULL;
	bool found;

	turn++;
	if (!folder)
		return getline(line, room, stdin) > 0;
	snprintf(path, sizeof(path), "%s/%u.command", folder, turn);
	while (!in) {
		in = fopen(path, "r");
		if (!in)
			usleep(POLL_US);
	}
	found = getline(line, room, in) > 0;
	fclose(in);
	return found;
}
