/* Graphs: their making, their buffers, their runs and their end. */
#include <stdlib.h>

#include "onnxifi_core.h"

enum { MOST_PROPERTIES = 128 };

/* --------------------------------------------------------------------------------------------- onnxInitGraph */

static void *publish(const backend *on, void *engine) {
    graph *made = object_new(KIND_GRAPH, sizeof *made, on->base.device);
    if (made == NULL) {
        return NULL;
    }
    made->base.epoch = on->base.epoch;
    made->engine = engine;
    pthread_cond_init(&made->idle, NULL);
    core_enter();
    void *handle = npu_handle_new(&core.handles, KIND_GRAPH, made);
    core_leave();
    if (handle == NULL) {
        pthread_cond_destroy(&made->idle);
        free(made);
    }
    return handle;
}

/* Numbers before the 0 that ends the list. A vendor property is followed by a value; the one standard ID that clients
 * use, ONNXIFI_OPTIMIZATION_AOT, is not. */
static uint32_t count_properties(const uint64_t *properties) {
    uint32_t count = 0;
    while (properties != NULL && properties[count] != ONNXIFI_GRAPH_PROPERTY_NONE && count < MOST_PROPERTIES) {
        count += properties[count] >> 32 != 0 ? 2 : 1;
    }
    return count;
}

static int32_t init(const backend *on, const uint64_t *properties, size_t size, const void *model,
                    const npu_tensor *weights, uint32_t weights_count, onnxGraph *out) {
    void *engine = NULL;
    int32_t status = engine_init_graph(on->engine, properties, count_properties(properties), model, size, weights,
                                       weights_count, &engine);
    if (status == ONNXIFI_STATUS_SUCCESS || status == ONNXIFI_STATUS_FALLBACK) {
        *out = publish(on, engine);
        if (*out == NULL) {
            engine_drop_graph(engine);
            status = ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
        }
    }
    return status;
}

int32_t graph_init(onnxBackend handle, const uint64_t *properties, size_t size, const void *model,
                   const npu_tensor *weights, uint32_t weights_count, int32_t tensors_status, onnxGraph *out) {
    if (out == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *out = NULL;
    backend *on = core_find(KIND_BACKEND, handle);
    if (on == NULL) {
        return ONNXIFI_STATUS_INVALID_BACKEND;
    }
    int32_t status = model == NULL      ? ONNXIFI_STATUS_INVALID_POINTER
                     : size == 0        ? ONNXIFI_STATUS_INVALID_SIZE
                     : tensors_status   ? tensors_status
                     : size > MOST_MODEL_BYTES ? ONNXIFI_STATUS_INVALID_PROTOBUF
                     : object_alive(&on->base) ? fault_take(FUNCTION_InitGraph)
                                               : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    core_leave();
    if (status == ONNXIFI_STATUS_SUCCESS) {
        status = init(on, properties, size, model, weights, weights_count, out);
    }
    object_release(on);
    return fault_filter(FUNCTION_InitGraph, status);
}

/* -------------------------------------------------------------------------------------------- onnxSetGraphIO */

/* A new binding with one reference, not the graph's yet. */
static int32_t bind(const graph *of, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                    uint32_t outputs_count, binding **out) {
    binding *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    }
    atomic_init(&made->references, 1);
    int32_t status = engine_set_io(of->engine, inputs, inputs_count, outputs, outputs_count, &made->engine);
    if (status != ONNXIFI_STATUS_SUCCESS) {
        free(made);
        return fault_filter(FUNCTION_SetGraphIO, status);
    }
    *out = made;
    return ONNXIFI_STATUS_SUCCESS;
}

/* Replaces a graph's binding; NULL removes it. Takes over the reference. */
static void rebind(graph *of, binding *next) {
    core_enter();
    binding *before = of->binding;
    of->binding = next;
    core_leave();
    if (before != NULL) {
        binding_release(before);
    }
}

/* Binds the graph, and returns the binding with a new reference. Any failure removes the old binding. */
static int32_t set_io(graph *of, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                      uint32_t outputs_count, int32_t status, binding **out) {
    *out = NULL;
    if (status == ONNXIFI_STATUS_SUCCESS) {
        core_enter();
        status = object_alive(&of->base) ? fault_take(FUNCTION_SetGraphIO) : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
        core_leave();
    }
    if (status == ONNXIFI_STATUS_SUCCESS) {
        status = bind(of, inputs, inputs_count, outputs, outputs_count, out);
    }
    if (*out != NULL) {
        atomic_fetch_add(&(*out)->references, 1);
    }
    rebind(of, *out);
    return status;
}

int32_t graph_set_io(onnxGraph handle, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                     uint32_t outputs_count, int32_t tensors_status) {
    graph *of = core_find(KIND_GRAPH, handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_GRAPH;
    }
    core_leave();
    binding *io;
    int32_t status = set_io(of, inputs, inputs_count, outputs, outputs_count, tensors_status, &io);
    if (io != NULL) {
        binding_release(io);
    }
    object_release(of);
    return status;
}

/* ---------------------------------------------------------------------------------------------- onnxRunGraph */

/* The job and its output event, or what is missing for them. With the lock held; on failure nothing remains. */
static int32_t submit(graph *of, binding *io, event *input, onnxTraceEventList *traces, onnxEvent *out) {
    int32_t status = ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    event *output = event_new(of->base.device, true);
    if (output == NULL) {
        return status;
    }
    output->base.epoch = of->base.epoch;
    job *made = job_new(of, io, input, output, traces);
    void *handle = made != NULL ? npu_handle_new(&core.handles, KIND_EVENT, output) : NULL;
    if (handle != NULL) {
        atomic_fetch_add(&output->base.references, 1); /* one for the job, one for the handle */
        status = job_submit(made);
        if (status == ONNXIFI_STATUS_SUCCESS) {
            *out = handle;
            return status;
        }
        npu_handle_remove(&core.handles, KIND_EVENT, handle);
    }
    if (made != NULL) { /* others also hold the graph, the binding and the input, so this frees nothing */
        npu_handle_remove(&core.handles, KIND_JOB, made->handle);
        atomic_fetch_sub(&of->base.references, 1);
        atomic_fetch_sub(&io->references, 1);
        if (input != NULL) {
            atomic_fetch_sub(&input->base.references, 1);
        }
        free(made);
    }
    event_end(output);
    free(output);
    return status;
}

static int32_t check_fence(const onnxMemoryFenceV1 *fence) {
    if (fence->tag != ONNXIFI_TAG_MEMORY_FENCE_V1) {
        return ONNXIFI_STATUS_UNSUPPORTED_TAG;
    }
    switch (fence->type) {
        case ONNXIFI_SYNCHRONIZATION_EVENT:
            return ONNXIFI_STATUS_SUCCESS;
        case ONNXIFI_SYNCHRONIZATION_IMPLICIT:
            return ONNXIFI_STATUS_UNSUPPORTED_FENCE_TYPE;
        default:
            return ONNXIFI_STATUS_INVALID_FENCE_TYPE;
    }
}

static int32_t check_fences(const onnxMemoryFenceV1 *in, const onnxMemoryFenceV1 *out) {
    if (in->tag != ONNXIFI_TAG_MEMORY_FENCE_V1 || out->tag != ONNXIFI_TAG_MEMORY_FENCE_V1) {
        return ONNXIFI_STATUS_UNSUPPORTED_TAG; /* before anything else of either is read */
    }
    int32_t status = check_fence(in);
    return status != ONNXIFI_STATUS_SUCCESS ? status : check_fence(out);
}

/* With the lock held. */
static int32_t run(graph *of, const onnxMemoryFenceV1 *in, onnxMemoryFenceV1 *out) {
    int32_t status = check_fences(in, out);
    if (status != ONNXIFI_STATUS_SUCCESS) {
        return status;
    }
    event *input = npu_handle_get(&core.handles, KIND_EVENT, in->event);
    if (input == NULL) {
        return ONNXIFI_STATUS_INVALID_EVENT;
    }
    status = object_alive(&of->base) ? fault_take(FUNCTION_RunGraph) : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    if (status != ONNXIFI_STATUS_SUCCESS) {
        return status;
    }
    return of->binding != NULL ? submit(of, of->binding, input, NULL, &out->event) : ONNXIFI_STATUS_UNIDENTIFIED_NAME;
}

int32_t graph_run(onnxGraph handle, const onnxMemoryFenceV1 *in, onnxMemoryFenceV1 *out) {
    if (in == NULL || out == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    graph *of = core_find(KIND_GRAPH, handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_GRAPH;
    }
    int32_t status = run(of, in, out);
    core_leave();
    object_release(of);
    return status;
}

int32_t graph_set_io_and_run(onnxGraph handle, const npu_tensor *inputs, uint32_t inputs_count,
                             const npu_tensor *outputs, uint32_t outputs_count, int32_t tensors_status,
                             onnxMemoryFenceV1 *out, onnxTraceEventList *traces) {
    if (out == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    graph *of = core_find(KIND_GRAPH, handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_GRAPH;
    }
    core_leave();
    binding *io = NULL;
    int32_t status = tensors_status != ONNXIFI_STATUS_SUCCESS ? tensors_status : check_fence(out);
    status = set_io(of, inputs, inputs_count, outputs, outputs_count, status, &io);
    if (status == ONNXIFI_STATUS_SUCCESS) {
        core_enter();
        status = object_alive(&of->base) ? fault_take(FUNCTION_RunGraph) : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
        if (status == ONNXIFI_STATUS_SUCCESS) {
            status = submit(of, io, NULL, traces, &out->event);
        }
        core_leave();
    }
    if (io != NULL) {
        binding_release(io);
    }
    object_release(of);
    return status;
}

/* ------------------------------------------------------------------------------------------ onnxReleaseGraph */

onnxStatus onnxReleaseGraph(onnxGraph handle) {
    NPU_HOST_MODE_ASIDE;
    core_enter();
    graph *of = npu_handle_get(&core.handles, KIND_GRAPH, handle);
    int32_t status = of != NULL ? fault_take(FUNCTION_ReleaseGraph) : ONNXIFI_STATUS_INVALID_GRAPH;
    if (status != ONNXIFI_STATUS_SUCCESS) {
        core_leave();
        return status;
    }
    npu_handle_remove(&core.handles, KIND_GRAPH, handle);
    while (of->in_flight > 0 && !npu_embed_forked()) {
        pthread_cond_wait(&of->idle, &core.lock);
    }
    core_leave();
    object_release(of);
    return ONNXIFI_STATUS_SUCCESS;
}
