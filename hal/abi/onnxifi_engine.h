/* The border between the C core of ONNXIFI, which knows handles, events and order, and the engine, which knows models.
 *
 * Statuses are onnxStatus. Objects of an engine are opaque, and each owner drops its object exactly once. Engine
 * functions may be called from several threads at a time; the core holds none of its locks meanwhile. */
#ifndef NPU_ONNXIFI_ENGINE_H
#define NPU_ONNXIFI_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "embed.h"

enum { NPU_ONNXIFI_VERSION = 1 };

/* A tensor descriptor of either layout; its tag was right. Pointers are the client's. */
typedef struct npu_tensor {
    const char *name;
    uint64_t data_type;
    uint64_t memory_type;
    uint64_t buffer;
    const uint64_t *shape;
    uint32_t dimensions; /* at most NPU_MOST_DIMENSIONS */
    uint32_t quantization_axis;
    uint64_t quantization_params; /* 0: scales and biases are not to be read */
    const float *scales;
    const int32_t *biases;
    bool is_offline;
} npu_tensor;

enum { NPU_MOST_DIMENSIONS = 64 };

typedef struct npu_timing {
    uint64_t cycles, run_ps, queued_ps, host_ps, total_ps;
} npu_timing;

typedef struct npu_span {
    const char *name;
    uint64_t start_ps, end_ps;
} npu_span;

/* How a run ended. Everything it points to is the caller's. */
typedef struct npu_outcome {
    int32_t status;
    const char *message;      /* or NULL */
    const npu_timing *timing; /* or NULL */
    const npu_span *spans;
    size_t spans_count;
} npu_outcome;

/* The services of a core for an engine: from any thread, at any time, with or without Python's lock. */
typedef struct npu_onnxifi_core {
    /* The run called job is over; a second call for the same job does nothing. */
    void (*complete)(void *job, const npu_outcome *outcome);
    void (*set_plugged)(uint32_t device, bool plugged);
    /* SUCCESS, INVALID_NAME, UNSUPPORTED_ATTRIBUTE: as the extension function npusimInjectFunction. */
    int32_t (*inject)(const char *function, int32_t status, uint32_t times);
} npu_onnxifi_core;

typedef struct npu_onnxifi_engine {
    npu_table_head head;
    /* Once per core: the number of devices. They are called 0, 1, ... */
    int32_t (*attach)(const npu_onnxifi_core *core, uint32_t *devices);
    /* Called once, after attach(); set_plugged() reports changes. */
    bool (*is_plugged)(uint32_t device);
    /* *size is the room at value; it becomes the size of what there is. FALLBACK: value is NULL, or too small. */
    int32_t (*info)(uint32_t device, int32_t type, void *value, size_t *size);
    int32_t (*compatibility)(uint32_t device, const void *model, size_t size);
    /* count: properties without the 0 at the end. */
    int32_t (*init_backend)(uint32_t device, const uint64_t *properties, uint32_t count, void **backend);
    /* weights: NULL for none. SUCCESS and FALLBACK return a graph. */
    int32_t (*init_graph)(void *backend, const uint64_t *properties, uint32_t count, const void *model, size_t size,
                          const npu_tensor *weights, uint32_t weights_count, void **graph);
    int32_t (*set_io)(void *graph, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                      uint32_t outputs_count, void **binding);
    /* Begins a run and returns; unless it fails, core->complete(job) follows. */
    int32_t (*start)(void *graph, void *binding, bool traced, const npu_onnxifi_core *core, void *job);
    void (*drop_backend)(void *backend);
    void (*drop_graph)(void *graph); /* no run of it is under way */
    void (*drop_binding)(void *binding);
    /* Tells every core of the process, this one among them. */
    void (*set_plugged)(uint32_t device, bool plugged);
} npu_onnxifi_engine;

#endif
