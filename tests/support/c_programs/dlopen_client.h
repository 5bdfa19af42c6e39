/* The common part of clients that load a library with dlopen: its functions, a model, one run of everything.
 *
 * The model has an input x and an output y, both float[4], and y is x. */
#ifndef CLIENT_H
#define CLIENT_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "onnxifi.h"
#include "onnxifi_ext.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

#define MEMBER(name) onnx##name##Function name;
static struct {
    ONNXIFI_FUNCTIONS(MEMBER)
    onnxGetExtensionFunctionAddressFunction GetExtensionFunctionAddress;
} api;

static char model[1 << 20];
static size_t model_size;
static onnxBackendID ids[16];
static size_t count = 16;

static void *resolve(void *library, const char *name) {
    void *found = dlsym(library, name);
    EXPECT(found != NULL);
    return found;
}

static void *load(const char *path, int flags) {
    void *library = dlopen(path, RTLD_NOW | flags);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define RESOLVE(name) *(void **)&api.name = resolve(library, "onnx" #name);
    ONNXIFI_FUNCTIONS(RESOLVE)
    RESOLVE(GetExtensionFunctionAddress)
    return library;
}

static onnxBackend backend_of(size_t device) {
    onnxBackend backend;
    EXPECT(api.InitBackend(ids[device], NULL, &backend) == ONNXIFI_STATUS_SUCCESS);
    return backend;
}

static onnxGraph graph_of(onnxBackend backend) {
    onnxGraph graph;
#ifdef ONNXIFI_NPUSIM_V1
    EXPECT(api.InitGraph(backend, NULL, model_size, model, 0, NULL, &graph) == ONNXIFI_STATUS_SUCCESS);
#else
    EXPECT(api.InitGraph(backend, NULL, model_size, model, 0, NULL, &graph, 0, NULL) == ONNXIFI_STATUS_SUCCESS);
#endif
    return graph;
}

static onnxTensorDescriptorV1 describe(const char *name, const float *data) {
    static const uint64_t shape[] = {4};
    return (onnxTensorDescriptorV1){.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, .name = name,
                                    .dataType = ONNXIFI_DATATYPE_FLOAT32, .dimensions = 1, .shape = shape,
                                    .buffer = (onnxPointer)(uintptr_t)data};
}

/* One run of a graph whose output must equal its input. */
static void run(onnxBackend backend, onnxGraph graph, float first) {
    float x[4] = {first, first + 1, first + 2, first + 3}, y[4] = {0};
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    onnxMemoryFenceV1 before = {.tag = ONNXIFI_TAG_MEMORY_FENCE_V1}, after = before;
    EXPECT(api.SetGraphIO(graph, 1, &in, 1, &out) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.InitEvent(backend, &before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.RunGraph(graph, &before, &after) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.SignalEvent(before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.WaitEvent(after.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(memcmp(x, y, sizeof x) == 0);
    EXPECT(api.ReleaseEvent(before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.ReleaseEvent(after.event) == ONNXIFI_STATUS_SUCCESS);
}

static void list(void) {
    count = 16;
    EXPECT(api.GetBackendIDs(ids, &count) == ONNXIFI_STATUS_SUCCESS);
}

static void everything(void) {
    list();
    for (size_t i = 0; i < count; i++) {
        onnxBackend backend = backend_of(i);
        onnxGraph graph = graph_of(backend);
        run(backend, graph, 1);
        EXPECT(api.ReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
        EXPECT(api.ReleaseBackend(backend) == ONNXIFI_STATUS_SUCCESS);
        EXPECT(api.ReleaseBackendID(ids[i]) == ONNXIFI_STATUS_SUCCESS);
    }
}

/* The source of the functions, and the model. */
static void prepare(const char *library, int flags, const char *path) {
    FILE *file = fopen(path, "rb");
    EXPECT(file != NULL);
    model_size = fread(model, 1, sizeof model, file);
    fclose(file);
    void *first = load(library, flags);
    dlclose(first); /* it stays loaded because its threads are in it */
    load(library, flags);
}

#endif
