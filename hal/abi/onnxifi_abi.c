/* The functions that take tensor descriptors, for the layout that ONNXIFI_NPUSIM_V1 selects, and the extensions. */
#include <stdlib.h>
#include <string.h>

#include "onnxifi_core.h"

/* ------------------------------------------------------------------------------------------------ reading descriptors */

typedef struct tensors {
    npu_tensor *items; /* to be freed; NULL for none */
    uint32_t count;
    int32_t status;
} tensors;

static int32_t read_one(const onnxTensorDescriptorV1 *from, npu_tensor *to) {
    if (from->tag != ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1) {
        return ONNXIFI_STATUS_UNSUPPORTED_TAG;
    }
    if (from->dimensions > NPU_MOST_DIMENSIONS) {
        return ONNXIFI_STATUS_INVALID_SHAPE;
    }
    *to = (npu_tensor){
        .name = from->name,
        .data_type = from->dataType,
        .memory_type = from->memoryType,
        .buffer = from->buffer,
        .shape = from->shape,
        .dimensions = from->dimensions,
    };
#ifndef ONNXIFI_NPUSIM_V1
    to->is_offline = from->isOffline != 0;
    to->quantization_params = from->quantizationParams;
    if (from->quantizationParams != 0) { /* clients leave the others as they are otherwise */
        to->quantization_axis = from->quantizationAxis;
        to->scales = from->scales;
        to->biases = from->biases;
    }
#endif
    return ONNXIFI_STATUS_SUCCESS;
}

/* Reads count descriptors. Without a pointer: none, or INVALID_POINTER if count is not 0. */
static tensors read_all(const onnxTensorDescriptorV1 *from, uint32_t count) {
    tensors read = {.status = ONNXIFI_STATUS_SUCCESS};
    if (from == NULL || count == 0) {
        read.status = count != 0 ? ONNXIFI_STATUS_INVALID_POINTER : ONNXIFI_STATUS_SUCCESS;
        return read;
    }
    for (uint32_t i = 0; i < count && read.status == ONNXIFI_STATUS_SUCCESS; i++) {
        if (from[i].tag != ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1) { /* of all, before there is memory for all */
            read.status = ONNXIFI_STATUS_UNSUPPORTED_TAG;
        }
    }
    read.items = read.status == ONNXIFI_STATUS_SUCCESS ? calloc(count, sizeof *read.items) : NULL;
    if (read.status == ONNXIFI_STATUS_SUCCESS && read.items == NULL) {
        read.status = ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    }
    for (uint32_t i = 0; i < count && read.status == ONNXIFI_STATUS_SUCCESS; i++) {
        read.status = read_one(&from[i], &read.items[i]);
        read.count = i + 1;
    }
    return read;
}

/* Of inputs and outputs together; outputs always need a pointer. */
static int32_t status_of(const onnxTensorDescriptorV1 *outputs, const tensors *in, const tensors *out) {
    if (outputs == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    return in->status == ONNXIFI_STATUS_INVALID_POINTER || out->status == ONNXIFI_STATUS_SUCCESS ? in->status : out->status;
}

/* ----------------------------------------------------------------------------------------------- functions */

#ifdef ONNXIFI_NPUSIM_V1
onnxStatus onnxInitGraph(onnxBackend handle, const uint64_t *properties, size_t size, const void *model, uint32_t count,
                         const onnxTensorDescriptorV1 *weights, onnxGraph *out)
#else
onnxStatus onnxInitGraph(onnxBackend handle, const uint64_t *properties, size_t size, const void *model, uint32_t count,
                         const onnxTensorDescriptorV1 *weights, onnxGraph *out,
                         uint32_t max_length __attribute__((unused)), void *reader __attribute__((unused)))
#endif
{
    NPU_HOST_MODE_ASIDE;
    tensors read = read_all(weights, count);
    int32_t status = graph_init(handle, properties, size, model, read.items, read.count, read.status, out);
    free(read.items);
    return status;
}

onnxStatus onnxSetGraphIO(onnxGraph handle, uint32_t inputs_count, const onnxTensorDescriptorV1 *inputs,
                          uint32_t outputs_count, const onnxTensorDescriptorV1 *outputs) {
    NPU_HOST_MODE_ASIDE;
    tensors in = read_all(inputs, inputs_count), out = read_all(outputs, outputs_count);
    int32_t status =
        graph_set_io(handle, in.items, in.count, out.items, out.count, status_of(outputs, &in, &out));
    free(in.items);
    free(out.items);
    return status;
}

onnxStatus onnxRunGraph(onnxGraph handle, const onnxMemoryFenceV1 *in, onnxMemoryFenceV1 *out) {
    NPU_HOST_MODE_ASIDE;
    return graph_run(handle, in, out);
}

/* ---------------------------------------------------------------------------------------------- extensions */

static onnxStatus set_io_and_run(onnxGraph handle, uint32_t inputs_count, const onnxTensorDescriptorV1 *inputs,
                                 uint32_t outputs_count, const onnxTensorDescriptorV1 *outputs, onnxMemoryFenceV1 *fence,
                                 onnxTraceEventList *traces) {
    NPU_HOST_MODE_ASIDE;
    tensors in = read_all(inputs, inputs_count), out = read_all(outputs, outputs_count);
    int32_t status = graph_set_io_and_run(handle, in.items, in.count, out.items, out.count,
                                          status_of(outputs, &in, &out), fence, traces);
    free(in.items);
    free(out.items);
    return status;
}

static onnxStatus release_traces(onnxTraceEventList *list) {
    NPU_HOST_MODE_ASIDE;
    if (list == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    free(list->traceEvents); /* the events are in the same allocation */
    *list = (onnxTraceEventList){0, NULL};
    return ONNXIFI_STATUS_SUCCESS;
}

static onnxStatus plug(onnxBackendID handle) {
    NPU_HOST_MODE_ASIDE;
    return backend_set_plugged(handle, true);
}

static onnxStatus unplug(onnxBackendID handle) {
    NPU_HOST_MODE_ASIDE;
    return backend_set_plugged(handle, false);
}

static const struct {
    const char *name;
    onnxExtensionFunctionPointer function;
} extensions[] = {
    {"onnxSetIOAndRunGraphFunction", (onnxExtensionFunctionPointer)(void (*)(void))set_io_and_run},
    {"onnxWaitEventForFunction", (onnxExtensionFunctionPointer)(void (*)(void))event_wait_for},
    {"onnxReleaseTraceEventsFunction", (onnxExtensionFunctionPointer)(void (*)(void))release_traces},
    {"npusimGetRunTimingFunction", (onnxExtensionFunctionPointer)(void (*)(void))event_timing},
    {"npusimInjectFunction", (onnxExtensionFunctionPointer)(void (*)(void))backend_inject},
    {"npusimPlugFunction", (onnxExtensionFunctionPointer)(void (*)(void))plug},
    {"npusimUnplugFunction", (onnxExtensionFunctionPointer)(void (*)(void))unplug},
};

onnxStatus onnxGetExtensionFunctionAddress(onnxBackendID handle, const char *name,
                                           onnxExtensionFunctionPointer *function) {
    NPU_HOST_MODE_ASIDE;
    if (function == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *function = NULL;
    int32_t status = backend_check(handle);
    if (name == NULL && status != ONNXIFI_STATUS_INVALID_ID) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    if (status != ONNXIFI_STATUS_SUCCESS) {
        return status;
    }
    for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        if (strcmp(extensions[i].name, name) == 0) {
            *function = extensions[i].function;
            return ONNXIFI_STATUS_SUCCESS;
        }
    }
    return ONNXIFI_STATUS_UNIDENTIFIED_NAME;
}
