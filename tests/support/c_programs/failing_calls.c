/* C library calls that fail on request, for LD_PRELOAD: see tests/support/failing_calls.py.
 *
 * Allocations and mappings count if npusim's own objects make them, according to the return address; writes count for
 * regular files. Internal calls of the C library are not intercepted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, ALLOCATE, WRITE, SYNC, RENAME, MAP };
enum { MOST_OBJECTS = 64 };

static struct {
    uintptr_t begin, end;
} objects[MOST_OBJECTS];
static int object_count;
static atomic_int wanted;
static atomic_long left, stop, seen;

/* Whether an object belongs to a package. A checkout may have the package's name, too, and contain an environment. */
static int is_within(const char *name, const char *package) {
    const char *last = NULL;
    for (const char *at = name; (at = strstr(at, package)) != NULL; at++) {
        last = at;
    }
    return last != NULL && strstr(last, "/site-packages/") == NULL;
}

static int look(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    const char *name = info->dlpi_name != NULL ? info->dlpi_name : "";
    /* Only npusim uses Python's module for mappings here. */
    if (!is_within(name, "/npusim/") && !is_within(name, "/hal/") && strstr(name, "/mmap.") == NULL) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum && object_count < MOST_OBJECTS; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
            objects[object_count].begin = info->dlpi_addr + part->p_vaddr;
            objects[object_count++].end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
        }
    }
    return 0;
}

/* From now on, calls first .. last of a kind fail, counted from 1. */
void failing_begin(int kind, long first, long last) {
    wanted = NOTHING;
    object_count = 0;
    dl_iterate_phdr(look, NULL);
    seen = 0;
    left = first;
    stop = last;
    wanted = kind;
}

/* Stops failing; returns the number of calls of the kind. */
long failing_end(void) {
    wanted = NOTHING;
    return seen;
}

static bool fails(int kind) {
    if (wanted != kind) {
        return false;
    }
    long number = atomic_fetch_add(&seen, 1) + 1;
    return number >= left && number <= stop;
}

static bool own_fails(int kind, const void *caller) {
    for (int i = 0; wanted == kind && i < object_count; i++) {
        if ((uintptr_t)caller >= objects[i].begin && (uintptr_t)caller < objects[i].end) {
            return fails(kind);
        }
    }
    return false;
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

#define ALLOCATES(result)                                                                                              \
    if (own_fails(ALLOCATE, __builtin_return_address(0))) {                                                            \
        errno = ENOMEM;                                                                                                \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    return result

void *malloc(size_t size) { ALLOCATES(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { ALLOCATES(__libc_calloc(count, size)); }
void *realloc(void *old, size_t size) { ALLOCATES(__libc_realloc(old, size)); }

static bool write_fails(int descriptor) {
    struct stat status;
    return wanted == WRITE && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && fails(WRITE);
}

/* The original function that this one replaces. */
#define NEXT(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))
#define UNLESS(condition, code, name, ...)                                                                             \
    if (condition) {                                                                                                   \
        errno = code;                                                                                                  \
        return -1;                                                                                                     \
    }                                                                                                                  \
    return NEXT(name)(__VA_ARGS__)

ssize_t write(int to, const void *data, size_t size) { UNLESS(write_fails(to), ENOSPC, write, to, data, size); }
ssize_t writev(int to, const struct iovec *parts, int count) {
    UNLESS(write_fails(to), ENOSPC, writev, to, parts, count);
}
ssize_t pwrite(int to, const void *data, size_t size, off_t at) {
    UNLESS(write_fails(to), ENOSPC, pwrite, to, data, size, at);
}
ssize_t pwrite64(int to, const void *data, size_t size, off64_t at) {
    UNLESS(write_fails(to), ENOSPC, pwrite64, to, data, size, at);
}
int ftruncate(int to, off_t size) { UNLESS(write_fails(to), ENOSPC, ftruncate, to, size); }
int ftruncate64(int to, off64_t size) { UNLESS(write_fails(to), ENOSPC, ftruncate64, to, size); }
int fsync(int of) { UNLESS(fails(SYNC), EIO, fsync, of); }
int fdatasync(int of) { UNLESS(fails(SYNC), EIO, fdatasync, of); }
int rename(const char *from, const char *to) { UNLESS(fails(RENAME), EIO, rename, from, to); }
int renameat(int a, const char *from, int b, const char *to) { UNLESS(fails(RENAME), EIO, renameat, a, from, b, to); }

void *mmap(void *at, size_t size, int protection, int flags, int of, off_t offset) {
    if (own_fails(MAP, __builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return NEXT(mmap)(at, size, protection, flags, of, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int of, off64_t offset) {
    if (own_fails(MAP, __builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return NEXT(mmap64)(at, size, protection, flags, of, offset);
}
