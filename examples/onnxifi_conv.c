/* Runs a convolution network through ONNXIFI: onnxifi_conv MODEL.onnx INPUT.bin, floats in, floats out.
 *
 * Build: cc onnxifi_conv.c $(pkg-config --cflags --libs onnxifi-npusim) */
#include <stdio.h>
#include <stdlib.h>

#include "onnxifi.h"

enum { INPUT = 3 * 16 * 16, OUTPUT = 10 };

static void check(onnxStatus status, const char *what) {
    if (status != ONNXIFI_STATUS_SUCCESS) {
        fprintf(stderr, "%s: status 0x%04x\n", what, (unsigned)status);
        exit(1);
    }
}

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes = malloc(*size);
    if (bytes == NULL || fread(bytes, 1, *size, file) != *size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return bytes;
}

static onnxTensorDescriptorV1 describe(const char *name, uint32_t dimensions, const uint64_t *shape, void *data) {
    return (onnxTensorDescriptorV1){.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, .name = name,
                                    .dataType = ONNXIFI_DATATYPE_FLOAT32, .memoryType = ONNXIFI_MEMORY_TYPE_CPU,
                                    .dimensions = dimensions, .shape = shape, .buffer = (onnxPointer)(uintptr_t)data};
}

int main(int argc, char **argv) {
    const uint64_t x_shape[] = {1, 3, 16, 16}, y_shape[] = {1, OUTPUT};
    onnxBackendID ids[16];
    onnxBackend backend;
    onnxGraph graph;
    onnxMemoryFenceV1 in = {.tag = ONNXIFI_TAG_MEMORY_FENCE_V1}, out = in;
    size_t count = 16, size, input_size;
    float y[OUTPUT];
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.onnx INPUT.bin\n", argv[0]);
        return 2;
    }
    void *model = read_file(argv[1], &size), *x = read_file(argv[2], &input_size);
    if (input_size != INPUT * sizeof(float)) {
        fprintf(stderr, "%s: must have %zu bytes\n", argv[2], INPUT * sizeof(float));
        return 2;
    }
    check(onnxGetBackendIDs(ids, &count), "onnxGetBackendIDs"); /* NPUSIM_ONNXIFI_BACKENDS lists the backends */
    if (count == 0) {
        return 1;
    }
    check(onnxInitBackend(ids[0], NULL, &backend), "onnxInitBackend");
    check(onnxInitGraph(backend, NULL, size, model, 0, NULL, &graph, 0, NULL), "onnxInitGraph");
    onnxTensorDescriptorV1 input = describe("x", 4, x_shape, x), output = describe("y", 2, y_shape, y);
    check(onnxSetGraphIO(graph, 1, &input, 1, &output), "onnxSetGraphIO");
    check(onnxInitEvent(backend, &in.event), "onnxInitEvent");
    check(onnxRunGraph(graph, &in, &out), "onnxRunGraph"); /* waits for its input event */
    check(onnxSignalEvent(in.event), "onnxSignalEvent");
    check(onnxWaitEvent(out.event), "onnxWaitEvent"); /* the status of the run */
    for (int i = 0; i < OUTPUT; i++) {
        printf("%.6f%c", y[i], i + 1 < OUTPUT ? ' ' : '\n');
    }
    onnxReleaseEvent(in.event), onnxReleaseEvent(out.event), onnxReleaseGraph(graph), onnxReleaseBackend(backend);
    while (count > 0) {
        onnxReleaseBackendID(ids[--count]);
    }
    return 0;
}
