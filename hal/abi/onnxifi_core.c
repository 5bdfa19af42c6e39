#include "onnxifi_core.h"

#include <stdlib.h>

struct core core = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .handles = {.tag = NPU_HANDLE_TAG},
    .events = TAILQ_HEAD_INITIALIZER(core.events),
    .jobs = {TAILQ_HEAD_INITIALIZER(core.jobs[0]), TAILQ_HEAD_INITIALIZER(core.jobs[1]),
             TAILQ_HEAD_INITIALIZER(core.jobs[2])},
    .ready = PTHREAD_COND_INITIALIZER,
};

/* --------------------------------------------------------------------------------------------------- start */

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool begun;

static void before_fork(void) { pthread_mutex_lock(&core.lock); }
static void after_fork(void) { pthread_mutex_unlock(&core.lock); }

static int32_t make_devices(uint32_t count) {
    device *devices = calloc(count > 0 ? count : 1, sizeof *devices);
    if (devices == NULL) {
        return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        devices[i] = (device){.number = i, .plugged = engine_is_plugged(i)};
        devices[i].id = npu_handle_new(&core.handles, KIND_ID, &devices[i]);
        if (devices[i].id == NULL) {
            return ONNXIFI_STATUS_NO_SYSTEM_MEMORY; /* the first ones stay: there is one core per process */
        }
    }
    core.devices = devices;
    core.devices_count = count;
    return ONNXIFI_STATUS_SUCCESS;
}

static void begin(void) {
    static const npu_onnxifi_core functions = {job_complete, device_set_plugged, fault_inject};
    uint32_t count = 0;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&core.finished, &clock);
    pthread_condattr_destroy(&clock);
    core.engine = onnxifi_engine(core_end);
    if (core.engine == NULL) {
        return;
    }
    int32_t status = engine_attach(&functions, &count);
    if (status == ONNXIFI_STATUS_SUCCESS) {
        status = make_devices(count);
    }
    if (status != ONNXIFI_STATUS_BACKEND_UNAVAILABLE) { /* otherwise Python has ended: there are no devices */
        core.status = status;
    }
    fault_read_environment();
    /* The child gets the lock free and what it protects whole, since handles must be refused there, not wait for
     * ever. */
    pthread_atfork(before_fork, after_fork, after_fork);
}

void core_enter(void) {
    if (!atomic_load(&begun) && !npu_embed_forked()) { /* a fork in the midst of the start leaves that lock taken */
        npu_embed_begin();
        pthread_mutex_lock(&start_lock);
        if (!atomic_load(&begun)) {
            begin();
            atomic_store(&begun, true);
        }
        pthread_mutex_unlock(&start_lock);
    }
    pthread_mutex_lock(&core.lock);
}

void core_leave(void) { pthread_mutex_unlock(&core.lock); }

/* ------------------------------------------------------------------------------------------------- objects */

void *core_find(unsigned kind, const void *handle) {
    core_enter();
    object *found = npu_handle_get(&core.handles, kind, handle);
    if (found == NULL) {
        core_leave();
        return NULL;
    }
    /* Still under the lock: a release in another thread removes the handle there, before it drops its reference. */
    atomic_fetch_add(&found->references, 1);
    return found;
}

bool object_alive(const object *of) {
    return !npu_embed_forked() && of->device->plugged && of->device->epoch == of->epoch;
}

void *object_new(unsigned kind, size_t size, device *on) {
    object *made = calloc(1, size);
    if (made != NULL) {
        *made = (object){.kind = kind, .device = on, .epoch = on->epoch};
        atomic_init(&made->references, 1);
    }
    return made;
}

static void end_graph(graph *of) {
    if (of->binding != NULL) {
        binding_release(of->binding);
    }
    engine_drop_graph(of->engine);
    pthread_cond_destroy(&of->idle);
}

void object_release(void *released) {
    object *of = released;
    if (npu_embed_forked() || atomic_fetch_sub(&of->references, 1) > 1) {
        return; /* a forked child's copy may have waiters that do not exist there, so it remains */
    }
    switch (of->kind) {
        case KIND_BACKEND:
            engine_drop_backend(((backend *)of)->engine);
            break;
        case KIND_GRAPH:
            end_graph((graph *)of);
            break;
        default:
            core_enter();
            event_end((event *)of);
            core_leave();
    }
    free(of);
}

void binding_release(binding *of) {
    if (npu_embed_forked() || atomic_fetch_sub(&of->references, 1) > 1) {
        return;
    }
    engine_drop_binding(of->engine);
    free(of);
}
