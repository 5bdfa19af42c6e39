/* Threads that run graphs and release objects at random: client_stress MODEL THREADS RUNS SEED, linked with the
 * library.
 *
 * MODEL: x to y = Relu(x), float[4]. Each thread has its own backend and graph, and sometimes creates new ones. Runs
 * come in chains of up to DEPTH, each waiting for the one before; the first waits for an event that is signalled at
 * some time. Prints "ok" and the number of runs if all values were right; else a line with the error, and the exit
 * status is 1. The caller must detect deadlocks. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxifi.h"

enum { DEPTH = 4, MOST_THREADS = 64 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) EXPECT((call) == ONNXIFI_STATUS_SUCCESS)

typedef struct worker {
    pthread_t thread;
    unsigned state;
    int runs;
    onnxBackendID id;
    onnxBackend backend;
    onnxGraph graph;
    float x[DEPTH][4], y[DEPTH][4];
} worker;

static char model[1 << 16];
static size_t model_size;

static unsigned chance(worker *of, unsigned n) { return (unsigned)rand_r(&of->state) % n; }

static onnxTensorDescriptorV1 describe(const char *name, const float *data) {
    static const uint64_t shape[] = {4};
    return (onnxTensorDescriptorV1){.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, .name = name,
                                    .dataType = ONNXIFI_DATATYPE_FLOAT32, .dimensions = 1, .shape = shape,
                                    .buffer = (onnxPointer)(uintptr_t)data};
}

static void make(worker *of) {
    OK(onnxInitBackend(of->id, NULL, &of->backend));
    OK(onnxInitGraph(of->backend, NULL, model_size, model, 0, NULL, &of->graph, 0, NULL));
}

/* Starts a run whose input event is `before`, and returns its output event. */
static onnxEvent start(worker *of, int number, onnxEvent before) {
    onnxTensorDescriptorV1 in = describe("x", of->x[number]), out = describe("y", of->y[number]);
    onnxMemoryFenceV1 first = {.tag = ONNXIFI_TAG_MEMORY_FENCE_V1, .event = before}, last = first;
    for (int i = 0; i < 4; i++) {
        of->x[number][i] = (float)chance(of, 2000) - 1000;
        of->y[number][i] = -1;
    }
    OK(onnxSetGraphIO(of->graph, 1, &in, 1, &out));
    OK(onnxRunGraph(of->graph, &first, &last));
    return last.event;
}

static void check(const worker *of, int number) {
    for (int i = 0; i < 4; i++) {
        EXPECT(of->y[number][i] == (of->x[number][i] > 0 ? of->x[number][i] : 0));
    }
}

static void chain(worker *of, int length) {
    onnxEvent events[DEPTH + 1];
    int early = (int)chance(of, 2), released = (int)chance(of, 2), gone = chance(of, 20) == 0;
    OK(onnxInitEvent(of->backend, &events[0]));
    if (early) {
        OK(onnxSignalEvent(events[0]));
    }
    for (int i = 0; i < length; i++) {
        events[i + 1] = start(of, i, events[i]);
        if (i > 0 && released) {
            OK(onnxReleaseEvent(events[i])); /* the run that waits for it still holds it */
        }
    }
    if (gone) {
        OK(onnxReleaseBackend(of->backend)); /* its graph continues */
    }
    if (!early) {
        OK(onnxSignalEvent(events[0]));
    }
    if (gone) {
        OK(onnxReleaseGraph(of->graph)); /* waits for the runs */
    } else {
        OK(onnxWaitEvent(events[length]));
    }
    for (int i = 0; i < length; i++) {
        check(of, i);
    }
    for (int i = 0; i <= length; i++) {
        onnxStatus expected = released && i > 0 && i < length ? ONNXIFI_STATUS_INVALID_EVENT : ONNXIFI_STATUS_SUCCESS;
        EXPECT(onnxReleaseEvent(events[i]) == expected);
    }
    if (gone) {
        make(of);
    }
}

static void *work(void *argument) {
    worker *of = argument;
    make(of);
    for (int left = of->runs; left > 0;) {
        int length = 1 + (int)chance(of, DEPTH);
        length = length < left ? length : left;
        chain(of, length);
        left -= length;
    }
    OK(onnxReleaseGraph(of->graph));
    OK(onnxReleaseBackend(of->backend));
    return NULL;
}

int main(int count, char **words) {
    static worker workers[MOST_THREADS];
    onnxBackendID ids[16];
    size_t devices = 16;
    EXPECT(count == 5);
    int threads = atoi(words[2]), runs = atoi(words[3]);
    FILE *file = fopen(words[1], "rb");
    EXPECT(file != NULL && threads > 0 && threads <= MOST_THREADS);
    model_size = fread(model, 1, sizeof model, file);
    fclose(file);
    OK(onnxGetBackendIDs(ids, &devices));
    for (int i = 0; i < threads; i++) {
        workers[i] = (worker){.state = (unsigned)(atoi(words[4]) * MOST_THREADS + i), .runs = runs,
                              .id = ids[(size_t)i % devices]};
        EXPECT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < threads; i++) {
        EXPECT(pthread_join(workers[i].thread, NULL) == 0);
    }
    printf("ok %d\n", threads * runs);
    return 0;
}
