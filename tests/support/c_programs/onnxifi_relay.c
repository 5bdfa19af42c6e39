/* A C client through which the tests make calls: compiled against onnxifi.h and linked with one flavour of the library.
 *
 * It takes tensors in its own layout, which is the same for both flavours, and converts them to the header's. All other
 * functions need no conversion and are also found in this file. */
#include <stdlib.h>

#include "onnxifi.h"

typedef struct plain_tensor {
    int32_t tag;
    const char *name;
    uint64_t data_type, memory_type;
    uint32_t dimensions;
    const uint64_t *shape;
    uint32_t axis;
    uint64_t params;
    const float *scales;
    const int32_t *biases;
    uint8_t offline;
    uint64_t buffer;
} plain_tensor;

static onnxTensorDescriptorV1 *descriptors(const plain_tensor *from, uint32_t count) {
    if (from == NULL) {
        return NULL;
    }
    onnxTensorDescriptorV1 *made = calloc(count + 1, sizeof *made);
    for (uint32_t i = 0; made != NULL && i < count; i++) {
        made[i].tag = from[i].tag;
        made[i].name = from[i].name;
        made[i].dataType = from[i].data_type;
        made[i].memoryType = from[i].memory_type;
        made[i].dimensions = from[i].dimensions;
        made[i].shape = from[i].shape;
        made[i].buffer = from[i].buffer;
#ifndef ONNXIFI_NPUSIM_V1
        made[i].quantizationAxis = from[i].axis;
        made[i].quantizationParams = from[i].params;
        made[i].scales = from[i].scales;
        made[i].biases = from[i].biases;
        made[i].isOffline = from[i].offline;
#endif
    }
    return made;
}

onnxStatus relay_InitGraph(onnxBackend backend, const uint64_t *properties, size_t size, const void *model,
                           uint32_t count, const plain_tensor *weights, onnxGraph *graph, uint32_t length, void *reader) {
    onnxTensorDescriptorV1 *given = descriptors(weights, count);
#ifdef ONNXIFI_NPUSIM_V1
    (void)length;
    (void)reader;
    onnxStatus status = onnxInitGraph(backend, properties, size, model, count, given, graph);
#else
    onnxStatus status = onnxInitGraph(backend, properties, size, model, count, given, graph, length, reader);
#endif
    free(given);
    return status;
}

onnxStatus relay_SetGraphIO(onnxGraph graph, uint32_t inputs_count, const plain_tensor *inputs, uint32_t outputs_count,
                            const plain_tensor *outputs) {
    onnxTensorDescriptorV1 *in = descriptors(inputs, inputs_count), *out = descriptors(outputs, outputs_count);
    onnxStatus status = onnxSetGraphIO(graph, inputs_count, in, outputs_count, out);
    free(in); /* as callers may do when the function has returned */
    free(out);
    return status;
}

/* This keeps the linker from dropping the library. */
onnxStatus relay_GetBackendIDs(onnxBackendID *ids, size_t *count) { return onnxGetBackendIDs(ids, count); }
