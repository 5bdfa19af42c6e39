#include "stub_engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxifi_core.h"

enum { DEVICES = 2, ELEMENTS = 4 };

atomic_int stub_live, stub_runs;

typedef struct io {
    const float *x;
    float *y;
} io;

/* A run passed to the worker, which completes runs like a device's thread. */
typedef struct task {
    struct task *next;
    io io;
    const npu_onnxifi_core *core;
    void *job;
} task;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static task *first, **last = &first;
static const npu_onnxifi_core *attached;
static _Thread_local bool completing;

/* One at a time, like a device. */
static void compute(const io *of) {
    static pthread_mutex_t device = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&device);
    for (int i = 0; i < ELEMENTS; i++) {
        of->y[i] = 2 * of->x[i] + 1;
    }
    pthread_mutex_unlock(&device);
    atomic_fetch_add(&stub_runs, 1);
}

static void *work(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (first == NULL) {
            pthread_cond_wait(&changed, &lock);
        }
        task *next = first;
        first = next->next;
        last = first != NULL ? last : &first;
        pthread_mutex_unlock(&lock);
        compute(&next->io);
        const npu_timing timing = {10, 20, 30, 40, 90};
        const npu_span span = {"unit", 1000000, 3000000};
        completing = true;
        next->core->complete(next->job, &(npu_outcome){0, "done", &timing, &span, 1});
        completing = false;
        free(next);
    }
    return NULL;
}

static int32_t attach(const npu_onnxifi_core *core, uint32_t *devices) {
    pthread_t thread;
    attached = core;
    *devices = DEVICES;
    if (pthread_create(&thread, NULL, work, NULL) != 0) {
        return ONNXIFI_STATUS_INTERNAL_ERROR;
    }
    pthread_detach(thread);
    return 0;
}

static bool is_plugged(uint32_t device) { return device < DEVICES; }

static int32_t info(uint32_t device, int32_t type, void *value, size_t *size) {
    static const char *names[DEVICES] = {"stub 0", "stub 1"};
    size_t room = *size;
    if (type != ONNXIFI_BACKEND_NAME) {
        return ONNXIFI_STATUS_UNSUPPORTED_ATTRIBUTE;
    }
    *size = strlen(names[device]) + 1;
    if (value == NULL || room < *size) {
        return ONNXIFI_STATUS_FALLBACK;
    }
    memcpy(value, names[device], *size);
    return 0;
}

static int32_t compatibility(uint32_t device, const void *model, size_t size) {
    (void)device;
    return size == 1 && *(const char *)model == 'F' ? ONNXIFI_STATUS_FALLBACK : ONNXIFI_STATUS_SUCCESS;
}

static int32_t make(size_t size, void **out) {
    *out = calloc(1, size);
    atomic_fetch_add(&stub_live, *out != NULL);
    return *out != NULL ? 0 : ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
}

static void drop(void *object) {
    free(object);
    atomic_fetch_sub(&stub_live, 1);
}

/* An engine may have to wait for its worker here, so this must not be called from the worker. */
static void drop_graph(void *object) {
    if (completing) {
        fprintf(stderr, "a graph was dropped by the thread that completed its run\n");
        abort();
    }
    drop(object);
}

static int32_t init_backend(uint32_t device, const uint64_t *properties, uint32_t count, void **backend) {
    (void)device;
    (void)properties;
    return count > 0 ? ONNXIFI_STATUS_UNSUPPORTED_PROPERTY : make(1, backend);
}

static int32_t init_graph(void *backend, const uint64_t *properties, uint32_t count, const void *model, size_t size,
                          const npu_tensor *weights, uint32_t weights_count, void **graph) {
    (void)backend;
    (void)properties;
    (void)count;
    (void)size;
    (void)weights;
    (void)weights_count;
    switch (*(const char *)model) {
        case 'X': /* a status that is not in the function's list */
            return ONNXIFI_STATUS_INVALID_EVENT;
        case 'F':
            return make(1, graph) == 0 ? ONNXIFI_STATUS_FALLBACK : ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
        default:
            return make(1, graph);
    }
}

static int32_t set_io(void *graph, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                      uint32_t outputs_count, void **binding) {
    (void)graph;
    if (inputs_count != 1 || outputs_count != 1) {
        return ONNXIFI_STATUS_UNIDENTIFIED_NAME;
    }
    if (inputs->buffer == 0 || outputs->buffer == 0) {
        return ONNXIFI_STATUS_INVALID_MEMORY_LOCATION;
    }
    int32_t status = make(sizeof(io), binding);
    if (status == 0) {
        *(io *)*binding = (io){(const float *)(uintptr_t)inputs->buffer, (float *)(uintptr_t)outputs->buffer};
    }
    return status;
}

/* Every third run is complete before this returns; one with a negative x[0] cannot be started. */
static int32_t start(void *graph, void *binding, bool traced, const npu_onnxifi_core *core, void *job) {
    static atomic_int count;
    const io *of = binding;
    int number = atomic_fetch_add(&count, 1);
    (void)graph;
    (void)traced;
    if (of->x[0] < 0) {
        return ONNXIFI_STATUS_NO_DEVICE_MEMORY;
    }
    if (number % 3 == 0) {
        compute(of);
        core->complete(job, &(npu_outcome){.status = 0});
        return 0;
    }
    task *made = malloc(sizeof *made);
    if (made == NULL) {
        return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    }
    *made = (task){.io = *of, .core = core, .job = job};
    pthread_mutex_lock(&lock);
    *last = made;
    last = &made->next;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

static void set_plugged(uint32_t device, bool plugged) { attached->set_plugged(device, plugged); }

const npu_onnxifi_engine *onnxifi_engine(void (*at_exit)(void)) {
    static const npu_onnxifi_engine table = {
        .head = {NPU_ONNXIFI_VERSION, sizeof table}, .attach = attach, .is_plugged = is_plugged,      .info = info,
        .compatibility = compatibility,              .init_backend = init_backend, .init_graph = init_graph,
        .set_io = set_io,                            .start = start,        .drop_backend = drop,
        .drop_graph = drop_graph,                          .drop_binding = drop,  .set_plugged = set_plugged,
    };
    static npu_embed_request request = {.library = "stub"};
    request.at_exit = at_exit;
    npu_embed_adopt(&request, &table);
    return npu_embed_table(&request);
}

/* embed.c is linked for its gate; nothing here starts Python. */
bool npu_python_locked(void) { return false; }
bool npu_python_elsewhere(void) { return false; }

const void *npu_python_table(const npu_embed_request *request, void (*at_exit)(void)) {
    (void)request;
    (void)at_exit;
    return NULL;
}
