#define _GNU_SOURCE
#include "embed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "embed_python.h"

/* ---------------------------------------------------------------------------------------------- the host's mode */

npu_host_mode npu_host_mode_aside(void) {
    npu_host_mode mode;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mode.cancelling);
    fegetenv(&mode.floats);
    fesetenv(FE_DFL_ENV); /* denormals are restored, too: they are part of neither ISO C nor fenv.h */
    return mode;
}

void npu_host_mode_back(const npu_host_mode *mode) {
    int ours;
    fesetenv(&mode->floats);
    pthread_setcancelstate(mode->cancelling, &ours); /* last: this may be the end of the thread */
}

/* ------------------------------------------------------------------------------------------------ the gate */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t empty;
    unsigned inside;
    bool open;
    void (*at_exit)(void);
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .empty = PTHREAD_COND_INITIALIZER};

static atomic_bool beginning, forked;

static void in_child(void) { atomic_store(&forked, atomic_load(&beginning)); }

/* With the library, not with its first call: between a fork and a lock of the start there would be a gap. */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

void npu_embed_begin(void) { atomic_store(&beginning, true); }

static void open_gate(const npu_embed_request *request) {
    pthread_mutex_lock(&gate.lock);
    gate.open = true;
    gate.at_exit = request->at_exit;
    pthread_mutex_unlock(&gate.lock);
}

bool npu_embed_forked(void) { return atomic_load(&forked); }

bool npu_embed_enter(void) {
    if (npu_embed_forked()) {
        return false; /* the lock may have been held by a thread that does not exist in this process */
    }
    pthread_mutex_lock(&gate.lock);
    bool entered = gate.open;
    /* Counted under the lock that closing takes: later callers find the gate closed. */
    gate.inside += entered;
    pthread_mutex_unlock(&gate.lock);
    return entered;
}

void npu_embed_leave(void) {
    pthread_mutex_lock(&gate.lock);
    if (--gate.inside == 0) {
        pthread_cond_broadcast(&gate.empty);
    }
    pthread_mutex_unlock(&gate.lock);
}

void npu_embed_close(void) {
    if (npu_embed_forked()) {
        return;
    }
    pthread_mutex_lock(&gate.lock);
    bool closing = gate.open;
    /* Close before waiting, or new callers could keep the process from ending. */
    gate.open = false;
    while (gate.inside > 0) {
        pthread_cond_wait(&gate.empty, &gate.lock);
    }
    pthread_mutex_unlock(&gate.lock);
    /* Nobody is inside any more, and no lock is held: at_exit may do anything. */
    if (closing && gate.at_exit != NULL) {
        gate.at_exit();
    }
}

/* ----------------------------------------------------------------------------------------------- the start */

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool started;
static const void *table;

static void start(void *request) {
    table = npu_python_table(request, npu_embed_close);
    if (table != NULL) {
        open_gate(request);
    }
}

const void *npu_embed_table(const npu_embed_request *request) {
    if (npu_embed_forked()) {
        return NULL;
    }
    if (!atomic_load(&started)) {
        npu_embed_begin();
        pthread_mutex_lock(&start_lock);
        if (!atomic_load(&started)) {
            npu_embed_request copy = *request;
            if (!npu_embed_call(start, &copy)) {
                fprintf(stderr, "%s: no simulated device: no thread with room for Python\n", request->library);
            }
            atomic_store(&started, true);
        }
        pthread_mutex_unlock(&start_lock);
    }
    return table;
}

void npu_embed_adopt(const npu_embed_request *request, const void *own) {
    npu_embed_begin();
    pthread_mutex_lock(&start_lock);
    if (!atomic_load(&started)) {
        table = own;
        open_gate(request);
        atomic_store(&started, true);
    }
    pthread_mutex_unlock(&start_lock);
}
