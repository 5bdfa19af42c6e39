/* Room on the stack: Python needs more than the threads of some hosts have. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "embed.h"
#include "embed_python.h"

/* A thread with less than ROOM left lets another do its calls, whose stack has MADE; only what is touched of it is
 * memory. */
enum { ROOM = 384 << 10, MADE = 4 << 20 };

/* The lowest address of this thread's stack; 1: it is not known, and taken for low enough. */
static _Thread_local uintptr_t lowest;

static uintptr_t find_lowest(void) {
    pthread_attr_t attributes;
    void *address = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) {
        return 1;
    }
    int failed = pthread_attr_getstack(&attributes, &address, &size);
    pthread_attr_destroy(&attributes);
    return failed || address == NULL ? 1 : (uintptr_t)address;
}

static bool has_room(void) {
    char here;
    uintptr_t now = (uintptr_t)&here;
    if (lowest == 0) {
        lowest = find_lowest();
    }
    return now < lowest || now - lowest >= ROOM; /* below: on a stack that the host has made itself */
}

typedef struct errand {
    void (*work)(void *);
    void *argument;
} errand;

static void *run_errand(void *of) {
    const errand *run = of;
    run->work(run->argument);
    return NULL;
}

bool npu_embed_thread(pthread_t *thread, void *(*body)(void *), void *argument) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setstacksize(&attributes, MADE);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(thread, &attributes, body, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return made;
}

bool npu_embed_call(void (*work)(void *), void *argument) {
    pthread_t thread;
    errand run = {work, argument};
    if (has_room() || npu_python_locked()) { /* who holds Python's lock is on a stack of Python's already */
        work(argument);
        return true;
    }
    if (!npu_embed_thread(&thread, run_errand, &run)) {
        return false;
    }
    return pthread_join(thread, NULL) == 0;
}
