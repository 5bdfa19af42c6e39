/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "vfio.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are in the order of the host, devices little-endian");

enum { VERSION = 1, REGION_INFO = 5, SET_IRQS = 8, REGION_READ = 9, REGION_WRITE = 10, DEVICE_RESET = 13 };
enum { TYPE = 0xf, REPLY = 1, ERROR = 1 << 5 };
enum { MOST_BYTES = 4096 }; /* of an answer; requests are small */
enum { MAPPABLE = 1 << 2, EVENTFD = 1 << 2, TRIGGER = 1 << 5 };

struct header {
	uint16_t number, command;
	uint32_t size, flags, error;
};

struct access {
	uint64_t offset;
	uint32_t region, count;
};

struct region_info {
	uint32_t argsz, flags, index, cap_offset;
	uint64_t size, offset;
};

static int fail(struct vfio *vfio, int error)
{
	if (!vfio->broken)
		vfio->broken = error;
	return -vfio->broken;
}

static int send_message(struct vfio *vfio, const struct header *header, const void *body, int fd)
{
	char bytes[sizeof(*header) + 64];
	size_t size = header->size, sent = 0;
	union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { 0 };
	struct iovec part = { bytes, size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (size > sizeof(bytes))
		return fail(vfio, EMSGSIZE);
	memcpy(bytes, header, sizeof(*header));
	if (size > sizeof(*header))
		memcpy(bytes + sizeof(*header), body, size - sizeof(*header));
	if (fd >= 0) {
		message.msg_control = control.room;
		message.msg_controllen = sizeof(control.room);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &fd, sizeof(int));
	}
	while (sent < size) {
		part = (struct iovec){ bytes + sent, size - sent };
		ssize_t done = sendmsg(vfio->socket, &message, MSG_NOSIGNAL);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return fail(vfio, EPIPE);
		sent += (size_t)done;
		message.msg_control = NULL; /* it went with the first bytes */
		message.msg_controllen = 0;
	}
	return 0;
}

/* Receive exactly this many bytes. A descriptor that arrives with them is stored in *fd, if requested and still empty.
 */
static int receive(struct vfio *vfio, void *data, size_t size, int *fd)
{
	union { char room[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } control;

	while (size) {
		struct iovec part = { data, size };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
					  .msg_controllen = sizeof(control.room) };
		ssize_t done = recvmsg(vfio->socket, &message, MSG_CMSG_CLOEXEC);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return fail(vfio, EPIPE);
		for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h; h = CMSG_NXTHDR(&message, h)) {
			size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			for (size_t i = 0; h->cmsg_type == SCM_RIGHTS && i < count; i++) {
				int came;
				memcpy(&came, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
				if (fd && *fd < 0)
					*fd = came;
				else
					close(came);
			}
		}
		data = (char *)data + done;
		size -= (size_t)done;
	}
	return 0;
}

/* Send a request and receive the answer: *got bytes, at most `room`. Requests of the server meanwhile are refused: it
 * has been given no memory. */
static int call(struct vfio *vfio, uint16_t command, const void *body, uint32_t size, int fd, void *answer, size_t room,
		size_t *got, int *came)
{
	struct header header = { ++vfio->number, command, (uint32_t)sizeof(header) + size, 0, 0 };
	char bytes[MOST_BYTES];

	if (vfio->broken || send_message(vfio, &header, body, fd))
		return -vfio->broken;
	for (;;) {
		if (receive(vfio, &header, sizeof(header), came))
			return -vfio->broken;
		if (header.size < sizeof(header) || header.size - sizeof(header) > sizeof(bytes))
			return fail(vfio, EPROTO);
		size = header.size - (uint32_t)sizeof(header);
		if (receive(vfio, bytes, size, came))
			return -vfio->broken;
		if ((header.flags & TYPE) == REPLY)
			break;
		header = (struct header){ header.number, header.command, sizeof(header), REPLY | ERROR, EFAULT };
		if (send_message(vfio, &header, NULL, -1))
			return -vfio->broken;
	}
	if (header.number != vfio->number || header.command != command)
		return fail(vfio, EPROTO);
	if (header.flags & ERROR)
		return header.error > 0 && header.error < 4096 ? -(int)header.error : -EIO;
	*got = size < room ? size : room;
	if (*got)
		memcpy(answer, bytes, *got);
	return 0;
}

int vfio_open(struct vfio *vfio, const char *path)
{
	static const struct { uint16_t major, minor; char text[3]; } ours = { 0, 1, "{}" };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	uint16_t theirs[2] = { 0xffff, 0 };
	size_t got;

	*vfio = (struct vfio){ .socket = -1 };
	if (strlen(path) >= sizeof(address.sun_path))
		return fail(vfio, ENAMETOOLONG);
	strcpy(address.sun_path, path);
	vfio->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (vfio->socket < 0 || connect(vfio->socket, (struct sockaddr *)&address, sizeof(address)))
		return fail(vfio, errno);
	int error = call(vfio, VERSION, &ours, 7, -1, theirs, sizeof(theirs), &got, NULL);
	if (error)
		return error;
	return got < sizeof(theirs) || theirs[0] ? fail(vfio, EPROTO) : 0;
}

void vfio_close(struct vfio *vfio)
{
	if (vfio->socket >= 0)
		close(vfio->socket);
	*vfio = (struct vfio){ .socket = -1, .broken = ENOTCONN };
}

int vfio_reset(struct vfio *vfio)
{
	size_t got;

	return call(vfio, DEVICE_RESET, NULL, 0, -1, NULL, 0, &got, NULL);
}

int vfio_read(struct vfio *vfio, uint32_t region, uint64_t offset, uint32_t size, uint64_t *value)
{
	struct access access = { offset, region, size };
	char answer[sizeof(access) + 8] = { 0 };
	size_t got;
	int error = call(vfio, REGION_READ, &access, sizeof(access), -1, answer, sizeof(answer), &got, NULL);

	if (!error && got != sizeof(access) + size)
		return fail(vfio, EPROTO);
	memcpy(value, answer + sizeof(access), sizeof(*value));
	return error;
}

int vfio_write(struct vfio *vfio, uint32_t region, uint64_t offset, uint32_t size, uint64_t value)
{
	struct { struct access access; uint64_t data; } body = { { offset, region, size }, value };
	size_t got;

	return call(vfio, REGION_WRITE, &body, (uint32_t)sizeof(body.access) + size, -1, NULL, 0, &got, NULL);
}

int vfio_map(struct vfio *vfio, uint32_t region, void **memory, size_t *size)
{
	struct region_info info = { .argsz = sizeof(info), .index = region };
	size_t got;
	int file = -1, error = call(vfio, REGION_INFO, &info, sizeof(info), -1, &info, sizeof(info), &got, &file);

	struct stat status;

	if (!error && (got != sizeof(info) || !(info.flags & MAPPABLE) || fstat(file, &status)))
		error = -ENODEV;
	if (!error) { /* the size of a BAR is a power of two, the memory behind it may be smaller */
		uint64_t there = (uint64_t)status.st_size > info.offset ? (uint64_t)status.st_size - info.offset : 0;
		*size = info.size < there ? info.size : there;
		*memory = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)info.offset);
		error = *memory == MAP_FAILED ? -errno : 0;
	}
	if (file >= 0)
		close(file);
	return error;
}

int vfio_set_irq(struct vfio *vfio, uint32_t kind, uint32_t vector, int eventfd)
{
	uint32_t body[5] = { sizeof(body), EVENTFD | TRIGGER, kind, vector, 1 };
	size_t got;

	return call(vfio, SET_IRQS, body, sizeof(body), eventfd, NULL, 0, &got, NULL);
}
