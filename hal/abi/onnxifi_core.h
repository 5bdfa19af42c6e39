/* The C core of ONNXIFI: handles, events, the queue of runs, injected failures. Used only by the files onnxifi_*.c.
 *
 * One lock, core.lock, guards everything here except reference counts, which are atomic. It is never held while the
 * engine is called, so its holder needs nothing else. */
#ifndef NPU_ONNXIFI_CORE_H
#define NPU_ONNXIFI_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "handles.h"
#include "onnxifi.h"
#include "onnxifi_engine.h"
#include "onnxifi_ext.h"

/* No protobuf is larger. */
#define MOST_MODEL_BYTES ((size_t)INT32_MAX)

/* ------------------------------------------------------------------------------------------------- objects */

enum { KIND_ID = 1, KIND_BACKEND, KIND_EVENT, KIND_GRAPH, KIND_JOB };
enum { MESSAGE_SIZE = 512 };

typedef struct device {
    uint32_t number;
    bool plugged;
    uint32_t epoch;      /* how often it was unplugged */
    uint64_t references; /* how often its ID was given out and not released */
    void *id;            /* the handle */
} device;

typedef struct object {
    unsigned kind;
    atomic_uint references;
    device *device;
    uint32_t epoch; /* the device's epoch when this was created: an older one is dead */
} object;

typedef struct backend {
    object base;
    void *engine;
} backend;

typedef struct event {
    object base;
    TAILQ_ENTRY(event) entry; /* in core.events */
    pthread_cond_t changed;
    bool signalled;
    bool produced; /* by a run that is under way, not by the client */
    int32_t status;
    char message[MESSAGE_SIZE];
    bool timed;
    npu_timing timing;
} event;

typedef struct binding {
    atomic_uint references;
    void *engine;
} binding;

typedef struct graph {
    object base;
    void *engine;
    binding *binding; /* NULL: none, or the last onnxSetGraphIO failed */
    uint32_t in_flight;
    pthread_cond_t idle;
} graph;

typedef enum { JOB_PENDING, JOB_READY, JOB_STARTED } job_state;

/* A run. It holds a reference to everything that it names. */
typedef struct job {
    TAILQ_ENTRY(job) entry; /* in the list of its state */
    job_state state;
    void *handle;
    graph *graph;
    binding *binding;
    event *input; /* NULL: starts at once */
    event *output;
    onnxTraceEventList *traces; /* the client's, or NULL */
} job;

TAILQ_HEAD(job_list, job);
TAILQ_HEAD(event_list, event);

/* The functions that failures can be injected into: the fifteen, and the run itself. */
enum {
#define NAME(name) FUNCTION_##name,
    ONNXIFI_FUNCTIONS(NAME)
#undef NAME
        FUNCTION_RUN,
    FUNCTION_COUNT
};

typedef struct fault {
    int32_t status;
    uint32_t times;
} fault;

struct core {
    pthread_mutex_t lock;
    int32_t status; /* of the engine's attach() */
    const npu_onnxifi_engine *engine; /* NULL: there is no Python to be had */
    npu_handles handles;
    uint32_t devices_count;
    device *devices;
    struct event_list events;
    struct job_list jobs[3]; /* by state; each in the order in which it became so */
    uint32_t started;        /* length of core.jobs[JOB_STARTED] */
    bool dispatching;        /* the thread exists */
    pthread_cond_t ready;    /* the dispatcher may have work */
    pthread_cond_t finished; /* core.jobs[JOB_STARTED] is shorter */
    fault faults[FUNCTION_COUNT];
};

extern struct core core;

/* The table of the library that the core is built into, or NULL; defined by onnxifi_library.c or the Python module. */
const npu_onnxifi_engine *onnxifi_engine(void (*at_exit)(void));

/* ---------------------------------------------------------------------------------------------------- core */

/* Takes core.lock, after starting the core on the first call; then core.engine and core.status are valid. */
void core_enter(void);
void core_leave(void);

/* core_enter(), then the object of a handle, with a new reference. NULL, without the lock, if there is none. */
void *core_find(unsigned kind, const void *handle);

/* Whether calls on this object reach a device. With the lock held. */
bool object_alive(const object *of);

/* Drops a reference; the last one frees the object. Without the lock. */
void object_release(void *of);
void binding_release(binding *of);

/* A new object of a kind, all zero but for its base, with one reference; NULL when there is no memory. */
void *object_new(unsigned kind, size_t size, device *on);

/* ------------------------------------------------------------------------------------------------- onnxifi_calls.c
 * The engine's functions, see onnxifi_engine.h; BACKEND_UNAVAILABLE when it cannot be reached. Without the lock. */

int32_t engine_attach(const npu_onnxifi_core *functions, uint32_t *devices);
bool engine_is_plugged(uint32_t device);
int32_t engine_info(uint32_t device, int32_t type, void *value, size_t *size);
int32_t engine_compatibility(uint32_t device, const void *model, size_t size);
int32_t engine_init_backend(uint32_t device, const uint64_t *properties, uint32_t count, void **backend);
int32_t engine_init_graph(void *backend, const uint64_t *properties, uint32_t count, const void *model, size_t size,
                          const npu_tensor *weights, uint32_t weights_count, void **graph);
int32_t engine_set_io(void *graph, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                      uint32_t outputs_count, void **binding);
int32_t engine_start(void *graph, void *binding, bool traced, const npu_onnxifi_core *functions, void *job);
void engine_drop_backend(void *backend);
void engine_drop_graph(void *graph);
void engine_drop_binding(void *binding);
int32_t engine_set_plugged(uint32_t device, bool plugged);

/* ---------------------------------------------------------------------------------------------- onnxifi_faults.c */

/* The injected status of a function, which is consumed; SUCCESS if there is none. With the lock held. */
int32_t fault_take(int function);
/* What npusimInjectFunction does. */
int32_t fault_inject(const char *function, int32_t status, uint32_t times);
/* The contents of NPUSIM_ONNXIFI_INJECT. */
void fault_read_environment(void);
/* The status itself if the function may return it, otherwise the one for what should not have happened. */
int32_t fault_filter(int function, int32_t status);

/* ------------------------------------------------------------------------------------------------ onnxifi_events.c */

/* A new event on a device, with one reference, or NULL. With the lock held, as for the end. */
event *event_new(device *on, bool produced);
void event_end(event *of);
/* Signals once; jobs that wait become ready. False if it was signalled already. With the lock held. */
bool event_signal(event *of, int32_t status, const char *message);
/* What the extensions onnxWaitEventForFunction and npusimGetRunTimingFunction do. */
onnxStatus event_wait_for(onnxEvent handle, uint32_t milliseconds, onnxEventState *state, onnxStatus *status,
                          char *message, size_t *length);
/* onnxWaitEvent for callers that also poll other things: returns the event, or NULL, which stays alive until
 * object_release() even if its handle is released meanwhile; and waits for a part of the time. If not over, the time
 * has passed, and there is no status yet. */
void *event_wait_begin(onnxEvent handle);
onnxStatus event_wait_slice(void *event, uint32_t milliseconds, bool *over);
onnxStatus event_timing(onnxEvent handle, npusimRunTiming *timing);

/* ------------------------------------------------------------------------------------------------ onnxifi_runs.c */

void job_complete(void *handle, const npu_outcome *outcome);
/* A job for a graph, not queued yet, with references to everything it uses; it takes over the caller's reference to the
 * output. NULL if out of memory. With the lock held. */
job *job_new(graph *of, binding *io, event *input, event *output, onnxTraceEventList *traces);
/* Queues a job, now or when its input is signalled. NO_SYSTEM_RESOURCES, and nothing done, if there can be no thread.
 * With the lock held. */
int32_t job_submit(job *of);
/* Moves the jobs that wait for an event to the queue. With the lock held. */
void jobs_wake(const event *input);
void device_set_plugged(uint32_t number, bool plugged);
/* At the end of the interpreter: removes all devices and runs. */
void core_end(void);

/* ---------------------------------------------------------------------------------------------- onnxifi_backends.c */

onnxStatus backend_inject(onnxBackendID handle, const char *function, onnxStatus status, uint32_t times);
onnxStatus backend_set_plugged(onnxBackendID handle, bool plugged);
/* Whether the ID's device is there: SUCCESS, INVALID_ID or BACKEND_UNAVAILABLE. */
onnxStatus backend_check(onnxBackendID handle);

/* ------------------------------------------------------------------------------------------------ onnxifi_graphs.c
 * tensors_status: of reading the client's descriptors; it counts when handles and pointers are right. */

int32_t graph_init(onnxBackend handle, const uint64_t *properties, size_t size, const void *model,
                   const npu_tensor *weights, uint32_t weights_count, int32_t tensors_status, onnxGraph *out);
int32_t graph_set_io(onnxGraph handle, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                     uint32_t outputs_count, int32_t tensors_status);
int32_t graph_run(onnxGraph handle, const onnxMemoryFenceV1 *in, onnxMemoryFenceV1 *out);
int32_t graph_set_io_and_run(onnxGraph handle, const npu_tensor *inputs, uint32_t inputs_count,
                             const npu_tensor *outputs, uint32_t outputs_count, int32_t tensors_status,
                             onnxMemoryFenceV1 *out, onnxTraceEventList *traces);

#endif
