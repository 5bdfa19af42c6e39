/* Where a call is done: here, or on another thread, if Python has too little room on this one's stack or is not at home. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "embed.h"
#include "embed_python.h"

/* If a thread has less than ROOM left, another thread with a stack of MADE makes its calls; only touched pages of it
 * use memory. */
enum { ROOM = 384 << 10, MADE = 4 << 20 };

/* The stack of this thread. If the system does not report it, it is assumed to be large enough. */
static _Thread_local struct {
    uintptr_t begin, end;
} stack;

static void find_stack(void) {
    pthread_attr_t attributes;
    void *address = NULL;
    size_t size = 0;
    stack.begin = 1, stack.end = UINTPTR_MAX;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &address, &size) == 0 && address != NULL) {
            stack.begin = (uintptr_t)address, stack.end = stack.begin + size;
        }
        pthread_attr_destroy(&attributes);
    }
}

static bool has_room(void) {
    char here;
    uintptr_t now = (uintptr_t)&here;
    if (stack.begin == 0) {
        find_stack();
    }
    /* Otherwise it is on a stack of the host (makecontext, sigaltstack) of unknown size. */
    return now >= stack.begin && now < stack.end && now - stack.begin >= ROOM;
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
    /* A thread that holds the GIL already has a stack for Python; another thread would wait for the GIL forever. */
    if ((has_room() && !npu_python_elsewhere()) || npu_python_locked()) {
        work(argument);
        return true;
    }
    if (!npu_embed_thread(&thread, run_errand, &run)) {
        return false;
    }
    return pthread_join(thread, NULL) == 0;
}
