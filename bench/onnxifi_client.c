/* The cost on the host of one run of a tiny graph: onnxifi_client MODEL WAY RUNS BATCHES, linked with the library.
 *
 * MODEL maps x, float[4], to y. WAY: "sync" waits for each run; "async" submits RUNS runs, then waits for all of them;
 * "fence" is async with an input event per run, signalled after the run was submitted. Prints microseconds per run for
 * each batch: real time, and CPU time of the process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "onnxifi.h"

#define EXPECT(call)                                                                                                   \
    do {                                                                                                               \
        onnxStatus status = (call);                                                                                    \
        if (status != ONNXIFI_STATUS_SUCCESS) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %#x\n", __FILE__, __LINE__, #call, (unsigned)status);                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { MOST_RUNS = 4096 };

static float x[4] = {1, 2, 3, 4}, y[4];
static char model[1 << 16];
static onnxBackend backend;
static onnxGraph graph;
static onnxEvent now; /* signalled */

static double microseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void prepare(const char *path) {
    FILE *file = fopen(path, "rb");
    size_t size = file != NULL ? fread(model, 1, sizeof model, file) : 0, count = 16;
    const uint64_t shape[] = {4};
    onnxBackendID ids[16];
    onnxTensorDescriptorV1 in = {.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, .name = "x", .dimensions = 1, .shape = shape};
    in.dataType = ONNXIFI_DATATYPE_FLOAT32;
    onnxTensorDescriptorV1 out = in;
    in.buffer = (onnxPointer)(uintptr_t)x;
    out.name = "y";
    out.buffer = (onnxPointer)(uintptr_t)y;
    EXPECT(onnxGetBackendIDs(ids, &count));
    EXPECT(onnxInitBackend(ids[0], NULL, &backend));
    EXPECT(onnxInitGraph(backend, NULL, size, model, 0, NULL, &graph, 0, NULL));
    EXPECT(onnxSetGraphIO(graph, 1, &in, 1, &out));
    EXPECT(onnxInitEvent(backend, &now));
    EXPECT(onnxSignalEvent(now));
}

static void batch(const char *way, int runs) {
    static onnxMemoryFenceV1 before[MOST_RUNS], after[MOST_RUNS];
    int fenced = strcmp(way, "fence") == 0, waits = strcmp(way, "sync") == 0;
    for (int i = 0; i < runs; i++) {
        before[i] = (onnxMemoryFenceV1){.tag = ONNXIFI_TAG_MEMORY_FENCE_V1, .event = now};
        after[i] = (onnxMemoryFenceV1){.tag = ONNXIFI_TAG_MEMORY_FENCE_V1};
        if (fenced) {
            EXPECT(onnxInitEvent(backend, &before[i].event));
        }
        EXPECT(onnxRunGraph(graph, &before[i], &after[i]));
        if (fenced) {
            EXPECT(onnxSignalEvent(before[i].event));
        }
        if (waits) {
            EXPECT(onnxWaitEvent(after[i].event));
        }
    }
    for (int i = 0; i < runs; i++) {
        EXPECT(onnxWaitEvent(after[i].event));
        EXPECT(onnxReleaseEvent(after[i].event));
        if (fenced) {
            EXPECT(onnxReleaseEvent(before[i].event));
        }
    }
}

int main(int count, char **words) {
    int runs = count == 5 ? atoi(words[3]) : 0;
    if (runs < 1 || runs > MOST_RUNS) {
        fprintf(stderr, "usage: onnxifi_client MODEL sync|async|fence RUNS BATCHES; at most %d runs\n", MOST_RUNS);
        return 2;
    }
    prepare(words[1]);
    batch(words[2], runs);
    for (int i = atoi(words[4]); i > 0; i--) {
        double real = microseconds(CLOCK_MONOTONIC), cpu = microseconds(CLOCK_PROCESS_CPUTIME_ID);
        batch(words[2], runs);
        printf("%.1f %.1f\n", (microseconds(CLOCK_MONOTONIC) - real) / runs,
               (microseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / runs);
    }
    return memcmp(x, y, sizeof x) == 0 ? 0 : 1;
}
