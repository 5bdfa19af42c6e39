/* Threads that use and release everything at random: core_stress THREADS RUNS. Prints "ok" or the error.
 *
 * Each thread has its own graph, and all share another one, for which only statuses are checked. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onnxifi.h"
#include "onnxifi_ext.h"
#include "stub_engine.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { ELEMENTS = 4, MOST_THREADS = 64 };

static onnxBackendID ids[2];
static onnxBackend backend;
static onnxGraph shared;
static float shared_x[ELEMENTS], shared_y[ELEMENTS];
static int runs;

static onnxTensorDescriptorV1 describe(const char *name, const float *data) {
    static const uint64_t shape[] = {ELEMENTS};
    return (onnxTensorDescriptorV1){.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1,
                                    .name = name,
                                    .dataType = ONNXIFI_DATATYPE_FLOAT32,
                                    .dimensions = 1,
                                    .shape = shape,
                                    .buffer = (onnxPointer)(uintptr_t)data};
}

static onnxMemoryFenceV1 fence(onnxEvent event) {
    return (onnxMemoryFenceV1){.tag = ONNXIFI_TAG_MEMORY_FENCE_V1, .event = event};
}

static void bind(onnxGraph graph, const float *x, const float *y) {
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    EXPECT(onnxSetGraphIO(graph, 1, &in, 1, &out) == ONNXIFI_STATUS_SUCCESS);
}

static onnxGraph new_graph(void) {
    onnxGraph graph;
    EXPECT(onnxInitGraph(backend, NULL, 1, "M", 0, NULL, &graph, 0, NULL) == ONNXIFI_STATUS_SUCCESS);
    return graph;
}

static onnxEvent new_event(void) {
    onnxEvent event;
    EXPECT(onnxInitEvent(backend, &event) == ONNXIFI_STATUS_SUCCESS);
    return event;
}

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static void release_event(onnxEvent event) {
    EXPECT(onnxReleaseEvent(event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxReleaseEvent(event) == ONNXIFI_STATUS_INVALID_EVENT);
}

/* Runs, waits, compares. */
static void run_and_check(onnxGraph graph, unsigned how, int value) {
    float x[ELEMENTS] = {(float)value, (float)value + 1, (float)value + 2, (float)value + 3}, y[ELEMENTS] = {0};
    bind(graph, x, y);
    onnxEvent start = new_event();
    onnxMemoryFenceV1 in = fence(start), out = fence(NULL);
    if (how & 1) {
        EXPECT(onnxSignalEvent(start) == ONNXIFI_STATUS_SUCCESS);
    }
    EXPECT(onnxRunGraph(graph, &in, &out) == ONNXIFI_STATUS_SUCCESS);
    if (!(how & 1)) {
        EXPECT(onnxSignalEvent(start) == ONNXIFI_STATUS_SUCCESS);
    }
    if (how & 2) {
        release_event(start);
    }
    EXPECT(onnxWaitEvent(out.event) == ONNXIFI_STATUS_SUCCESS);
    for (int i = 0; i < ELEMENTS; i++) {
        EXPECT(y[i] == 2 * x[i] + 1);
    }
    if (!(how & 2)) {
        release_event(start);
    }
    release_event(out.event);
}

/* A second run that starts at the end of the first; the event between them is released at once. */
static void chain(onnxGraph graph) {
    float x[ELEMENTS] = {1, 2, 3, 4}, y[ELEMENTS] = {0}, z[ELEMENTS] = {0};
    onnxEvent start = new_event();
    onnxMemoryFenceV1 in = fence(start), middle = fence(NULL), out = fence(NULL);
    bind(graph, x, y);
    EXPECT(onnxRunGraph(graph, &in, &middle) == ONNXIFI_STATUS_SUCCESS);
    bind(graph, y, z); /* the waiting run keeps its own buffers */
    EXPECT(onnxRunGraph(graph, &middle, &out) == ONNXIFI_STATUS_SUCCESS);
    release_event(middle.event);
    EXPECT(onnxSignalEvent(start) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxWaitEvent(out.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(y[3] == 9 && z[3] == 19);
    release_event(start);
    release_event(out.event);
}

/* A run whose input event can no longer be signalled ends with an error; so does a run that the engine refuses. */
static void fail(onnxGraph graph, unsigned how) {
    float x[ELEMENTS] = {-1, 0, 0, 0}, y[ELEMENTS];
    onnxEvent start = new_event();
    onnxMemoryFenceV1 in = fence(start), out = fence(NULL);
    bind(graph, x, y);
    EXPECT(onnxRunGraph(graph, &in, &out) == ONNXIFI_STATUS_SUCCESS);
    if (how & 1) {
        EXPECT(onnxSignalEvent(start) == ONNXIFI_STATUS_SUCCESS);
    }
    release_event(start);
    EXPECT(onnxWaitEvent(out.event) == ONNXIFI_STATUS_INTERNAL_ERROR);
    release_event(out.event);
}

/* The graph is released during its run, which blocks until the run has ended. */
static void release_running(int value) {
    float x[ELEMENTS] = {(float)value}, y[ELEMENTS] = {0};
    onnxGraph graph = new_graph();
    onnxEvent start = new_event();
    onnxMemoryFenceV1 in = fence(start), out = fence(NULL);
    bind(graph, x, y);
    EXPECT(onnxRunGraph(graph, &in, &out) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxSignalEvent(start) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(y[0] == 2 * x[0] + 1);
    EXPECT(onnxReleaseGraph(graph) == ONNXIFI_STATUS_INVALID_GRAPH);
    EXPECT(onnxWaitEvent(out.event) == ONNXIFI_STATUS_SUCCESS);
    release_event(start);
    release_event(out.event);
}

static void run_shared(void) {
    onnxEvent start = new_event();
    onnxMemoryFenceV1 in = fence(start), out = fence(NULL);
    EXPECT(onnxRunGraph(shared, &in, &out) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxSignalEvent(start) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxWaitEvent(out.event) == ONNXIFI_STATUS_SUCCESS);
    release_event(start);
    release_event(out.event);
}

static void *work(void *argument) {
    unsigned state = (unsigned)(uintptr_t)argument;
    onnxGraph graph = new_graph();
    for (int i = 0; i < runs; i++) {
        unsigned choice = next(&state);
        switch (choice % 16) {
            case 0:
                chain(graph);
                break;
            case 1:
                fail(graph, choice >> 4);
                break;
            case 2:
                release_running(i);
                break;
            case 3:
                run_shared();
                break;
            case 4:
                EXPECT(onnxReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
                graph = new_graph();
                break;
            default:
                run_and_check(graph, choice >> 4, i);
        }
    }
    EXPECT(onnxReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MOST_THREADS];
    int count = argc == 3 ? atoi(argv[1]) : 0;
    size_t devices = 2;
    EXPECT(count >= 1 && count <= MOST_THREADS);
    runs = atoi(argv[2]);
    EXPECT(onnxGetBackendIDs(ids, &devices) == ONNXIFI_STATUS_SUCCESS && devices == 2);
    EXPECT(onnxInitBackend(ids[0], NULL, &backend) == ONNXIFI_STATUS_SUCCESS);
    shared = new_graph();
    bind(shared, shared_x, shared_y);
    for (int i = 0; i < count; i++) {
        EXPECT(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    }
    for (int i = 0; i < count; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    EXPECT(onnxReleaseGraph(shared) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxReleaseBackend(backend) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxReleaseBackendID(ids[0]) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(onnxReleaseBackendID(ids[0]) == ONNXIFI_STATUS_INVALID_ID);
    for (int i = 0; atomic_load(&stub_live) > 0 && i < 1000; i++) { /* the signalling thread may still be releasing */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    EXPECT(atomic_load(&stub_live) == 0);
    printf("ok %d\n", atomic_load(&stub_runs));
    return 0;
}
