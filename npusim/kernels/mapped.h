/* Mapped files that another process may truncate. An access beyond the end of the file raises SIGBUS, which would end
 * the process. The handler here maps zeros instead and marks the mapping as cut. */
#ifndef NPU_MAPPED_H
#define NPU_MAPPED_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* One mapping. `end` is 0 while the entry is unused. Entries are reused but never freed, because a signal handler may
 * be reading them. */
typedef struct npu_mapped {
    _Atomic uintptr_t begin, end;
    _Atomic int cut;
    int protection;
    struct npu_mapped *next;
    struct npu_mapped *next_unused;
} npu_mapped;

static _Atomic(npu_mapped *) npu_all;
static npu_mapped *npu_unused;
static struct sigaction npu_previous;
static int npu_watching;

/* Replace the whole mapping with private zeros, because the rest of a truncated file is of no use. */
static int npu_cover(uintptr_t address)
{
    for (npu_mapped *each = atomic_load(&npu_all); each; each = each->next) {
        uintptr_t begin, end;
        do {
            begin = atomic_load(&each->begin);
            end = atomic_load(&each->end);
        } while (begin != atomic_load(&each->begin)); /* the entry was reused meanwhile */
        if (address < begin || address >= end)
            continue;
        atomic_store(&each->cut, 1); /* before any thread can read a zero */
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        return mmap((void *)begin, end - begin, each->protection, flags, -1, 0) != MAP_FAILED;
    }
    return 0;
}

static void npu_on_bus_error(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    int covered = info->si_code > 0 && npu_cover((uintptr_t)info->si_addr); /* otherwise a process sent the signal */
    errno = saved;
    if (covered)
        return;
    if (npu_previous.sa_flags & SA_SIGINFO) {
        npu_previous.sa_sigaction(number, info, context);
    } else if (npu_previous.sa_handler == SIG_DFL || (npu_previous.sa_handler == SIG_IGN && info->si_code > 0)) {
        signal(number, SIG_DFL);
        raise(number); /* delivered when this handler returns */
    } else if (npu_previous.sa_handler != SIG_IGN) {
        npu_previous.sa_handler(number);
    }
}

static int npu_watch(void)
{
    if (npu_watching)
        return 0;
    struct sigaction action = {.sa_sigaction = npu_on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &npu_previous) || sigaction(SIGBUS, &action, NULL))
        return -1;
    npu_watching = 1;
    return 0;
}

/* Register a mapping that may be truncated. NULL if there is no memory. Not thread-safe. */
static npu_mapped *npu_guard(void *data, size_t length, int protection)
{
    npu_mapped *entry = npu_unused;
    if (npu_watch())
        return NULL;
    if (entry) {
        npu_unused = entry->next_unused;
    } else {
        entry = calloc(1, sizeof *entry);
        if (!entry)
            return NULL;
        entry->next = atomic_load(&npu_all);
        atomic_store(&npu_all, entry);
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    entry->protection = protection;
    atomic_store(&entry->cut, 0);
    atomic_store(&entry->begin, (uintptr_t)data);
    atomic_store(&entry->end, (uintptr_t)data + (length + page - 1) / page * page);
    return entry;
}

/* Unregister a mapping before it is unmapped. Not thread-safe. */
static void npu_release(npu_mapped *entry)
{
    atomic_store(&entry->end, 0);
    entry->next_unused = npu_unused;
    npu_unused = entry;
}

static int npu_is_cut(npu_mapped *entry)
{
    return atomic_load(&entry->cut);
}

#endif
