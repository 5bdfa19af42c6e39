/* The C core without Python, case by case: core_cases CASE. Prints "ok" or the error. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "embed.h"
#include "onnxifi.h"
#include "onnxifi_ext.h"
#include "stub_engine.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define IS(call, name) EXPECT((call) == ONNXIFI_STATUS_##name)

static onnxBackendID ids[2];
static onnxBackend backend;
static onnxGraph graph;
static float x[4] = {1, 2, 3, 4}, y[4];
static const uint64_t shape[] = {4};

static onnxTensorDescriptorV1 describe(const char *name, const float *data) {
    return (onnxTensorDescriptorV1){.tag = ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1, .name = name, .dataType = 1,
                                    .dimensions = 1, .shape = shape, .buffer = (onnxPointer)(uintptr_t)data};
}

static onnxMemoryFenceV1 fence(onnxEvent event) {
    return (onnxMemoryFenceV1){.tag = ONNXIFI_TAG_MEMORY_FENCE_V1, .event = event};
}

static void begin(void) {
    size_t count = 2;
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    IS(onnxGetBackendIDs(ids, &count), SUCCESS);
    IS(onnxInitBackend(ids[0], NULL, &backend), SUCCESS);
    IS(onnxInitGraph(backend, NULL, 1, "M", 0, NULL, &graph, 0, NULL), SUCCESS);
    IS(onnxSetGraphIO(graph, 1, &in, 1, &out), SUCCESS);
}

static onnxEvent event(void) {
    onnxEvent made;
    IS(onnxInitEvent(backend, &made), SUCCESS);
    return made;
}

static void *extension(const char *name) {
    onnxExtensionFunctionPointer function;
    void *found;
    IS(onnxGetExtensionFunctionAddress(ids[0], name, &function), SUCCESS);
    memcpy(&found, &function, sizeof found);
    return found;
}

/* IDs are counted, and the same every time */
static void case_ids(void) {
    onnxBackendID again[2];
    size_t count = 1;
    IS(onnxGetBackendIDs(NULL, NULL), INVALID_POINTER);
    IS(onnxGetBackendIDs(again, &count), FALLBACK);
    EXPECT(count == 2);
    IS(onnxGetBackendIDs(again, &count), SUCCESS);
    EXPECT(again[0] == ids[0] && again[1] == ids[1]);
    IS(onnxReleaseBackendID(again[1]), SUCCESS);
    IS(onnxReleaseBackendID(ids[1]), SUCCESS);
    IS(onnxReleaseBackendID(ids[1]), INVALID_ID);
    IS(onnxGetBackendCompatibility(ids[1], 1, "M"), INVALID_ID);
    IS(onnxGetBackendCompatibility(ids[0], 1, "F"), FALLBACK);
}

/* a model larger than any protobuf can be is not read */
static void case_sizes(void) {
    onnxGraph none;
    IS(onnxGetBackendCompatibility(ids[0], SIZE_MAX, "M"), INVALID_PROTOBUF);
    IS(onnxGetBackendCompatibility(ids[0], (size_t)INT32_MAX + 1, "M"), INVALID_PROTOBUF);
    IS(onnxInitGraph(backend, NULL, SIZE_MAX, "M", 0, NULL, &none, 0, NULL), INVALID_PROTOBUF);
    EXPECT(none == NULL);
}

/* NULL, small numbers, addresses, stale handles and handles of other kinds are invalid */
static void case_handles(void) {
    onnxEvent old = event();
    IS(onnxReleaseEvent(old), SUCCESS);
    onnxEvent fresh = event(); /* takes the slot */
    EXPECT(old != fresh);
    const uintptr_t bits = (uintptr_t)fresh;
    void *wrong[] = {NULL, (void *)1, (void *)-1, (void *)&bits, backend, graph, ids[0], old,
                     (void *)(bits ^ 1), (void *)(bits ^ 0x100), (void *)(bits + (1UL << 16)), (void *)(bits + (1UL << 40))};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        IS(onnxSignalEvent(wrong[i]), INVALID_EVENT);
        IS(onnxReleaseEvent(wrong[i]), INVALID_EVENT);
        IS(onnxReleaseGraph(wrong[i] == graph ? NULL : wrong[i]), INVALID_GRAPH);
        IS(onnxReleaseBackend(wrong[i] == backend ? NULL : wrong[i]), INVALID_BACKEND);
        IS(onnxReleaseBackendID(wrong[i] == ids[0] ? NULL : wrong[i]), INVALID_ID);
    }
    IS(onnxReleaseEvent(fresh), SUCCESS);
}

/* a function never returns a status that is not in its list */
static void case_filter(void) {
    onnxGraph made = &made;
    IS(onnxInitGraph(backend, NULL, 1, "X", 0, NULL, &made, 0, NULL), INTERNAL_ERROR);
    EXPECT(made == NULL);
    IS(onnxInitGraph(backend, NULL, 1, "F", 0, NULL, &made, 0, NULL), FALLBACK);
    IS(onnxReleaseGraph(made), SUCCESS);
}

/* a failed onnxSetGraphIO removes the binding, whatever the reason */
static void case_binding(void) {
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y), bad = in;
    onnxMemoryFenceV1 before = fence(event()), after = fence(NULL);
    bad.tag = 0;
    IS(onnxSetGraphIO(graph, 1, &bad, 1, &out), UNSUPPORTED_TAG);
    IS(onnxRunGraph(graph, &before, &after), UNIDENTIFIED_NAME);
    bad = in, bad.dimensions = 65;
    IS(onnxSetGraphIO(graph, 1, &bad, 1, &out), INVALID_SHAPE);
    IS(onnxSetGraphIO(graph, 1, NULL, 1, &out), INVALID_POINTER);
    IS(onnxSetGraphIO(graph, 0, NULL, 1, NULL), INVALID_POINTER);
    IS(onnxSetGraphIO(graph, 0, NULL, 1, &out), UNIDENTIFIED_NAME);
    IS(onnxSetGraphIO(graph, 1, &in, 1, &out), SUCCESS);
    IS(onnxRunGraph(graph, &before, &after), SUCCESS);
    IS(onnxSignalEvent(before.event), SUCCESS);
    IS(onnxSignalEvent(before.event), INVALID_STATE);
    IS(onnxWaitEvent(after.event), SUCCESS);
    IS(onnxReleaseEvent(before.event), SUCCESS);
    IS(onnxReleaseEvent(after.event), SUCCESS);
}

/* set IO and run, traces, timing, waiting with a limit */
static void case_extensions(void) {
    onnxSetIOAndRunGraphFunction run;
    onnxWaitEventForFunction wait;
    onnxReleaseTraceEventsFunction release;
    npusimGetRunTimingFunction time;
    *(void **)&run = extension("onnxSetIOAndRunGraphFunction"), *(void **)&wait = extension("onnxWaitEventForFunction");
    *(void **)&release = extension("onnxReleaseTraceEventsFunction");
    *(void **)&time = extension("npusimGetRunTimingFunction");
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    onnxTraceEventList traces = {7, NULL};
    onnxEventState state;
    onnxStatus status;
    npusimRunTiming timing;
    char message[8];
    size_t length = sizeof message;
    onnxEvent never = event();
    IS(wait(never, 5, &state, &status, message, &length), SUCCESS);
    EXPECT(state == ONNXIFI_EVENT_STATE_NONSIGNALLED && length == 0);
    IS(time(never, &timing), INVALID_STATE);
    IS(onnxReleaseEvent(never), SUCCESS);
    for (int i = 0; i < 3; i++) { /* the stub completes one of three in another way, without timing */
        onnxMemoryFenceV1 after = fence(NULL);
        IS(run(graph, 1, &in, 1, &out, &after, &traces), SUCCESS);
        length = sizeof message;
        IS(wait(after.event, 0, &state, &status, message, &length), SUCCESS);
        EXPECT(state == ONNXIFI_EVENT_STATE_SIGNALLED && status == 0 && y[3] == 9);
        if (time(after.event, &timing) == ONNXIFI_STATUS_SUCCESS) {
            EXPECT(timing.cycles == 10 && timing.totalTime == 90 && length == 4 && strcmp(message, "done") == 0);
            EXPECT(traces.numEvents == 1 && traces.traceEvents[0]->timestamp == 1 && traces.traceEvents[0]->duration == 2);
        }
        IS(release(&traces), SUCCESS);
        EXPECT(traces.numEvents == 0 && traces.traceEvents == NULL);
        IS(onnxReleaseEvent(after.event), SUCCESS);
    }
    IS(release(NULL), INVALID_POINTER);
    IS(run(graph, 1, &in, 1, &out, NULL, NULL), INVALID_POINTER);
}

/* injected failures occur as often as requested, and only with a status of the function */
static void case_inject(void) {
    npusimInjectFunction inject;
    onnxEvent made = &made;
    *(void **)&inject = extension("npusimInjectFunction");
    IS(inject(ids[0], "onnxInitEvent", ONNXIFI_STATUS_NO_DEVICE_RESOURCES, 2), SUCCESS);
    IS(onnxInitEvent(backend, NULL), INVALID_POINTER); /* an invalid call does not count */
    IS(onnxInitEvent(backend, &made), NO_DEVICE_RESOURCES);
    EXPECT(made == NULL);
    IS(onnxInitEvent(backend, &made), NO_DEVICE_RESOURCES);
    IS(onnxInitEvent(backend, &made), SUCCESS);
    IS(inject(ids[0], "onnxInitEvent", ONNXIFI_STATUS_INVALID_EVENT, 1), UNSUPPORTED_ATTRIBUTE);
    IS(inject(ids[0], "onnxFly", ONNXIFI_STATUS_INTERNAL_ERROR, 1), INVALID_NAME);
    IS(inject(NULL, "onnxInitEvent", ONNXIFI_STATUS_INTERNAL_ERROR, 1), INVALID_ID);
    IS(inject(ids[0], "run", ONNXIFI_STATUS_INTERNAL_ERROR, 1), SUCCESS);
    onnxMemoryFenceV1 before = fence(made), after = fence(NULL);
    IS(onnxRunGraph(graph, &before, &after), SUCCESS);
    IS(onnxSignalEvent(made), SUCCESS);
    IS(onnxWaitEvent(after.event), INTERNAL_ERROR);
    IS(onnxReleaseEvent(after.event), SUCCESS);
    IS(onnxReleaseEvent(made), SUCCESS);
}

static void *wait_for(void *handle) { return (void *)(intptr_t)onnxWaitEvent(handle); }

/* a removed device ends every wait, and its objects stay unavailable when it is plugged in again */
static void case_unplug(void) {
    npusimPlugFunction plug, unplug;
    pthread_t thread;
    void *status;
    size_t count = 2;
    onnxMemoryFenceV1 before = fence(event()), after = fence(NULL);
    *(void **)&plug = extension("npusimPlugFunction"), *(void **)&unplug = extension("npusimUnplugFunction");
    IS(onnxRunGraph(graph, &before, &after), SUCCESS);
    EXPECT(pthread_create(&thread, NULL, wait_for, before.event) == 0);
    IS(unplug(ids[0]), SUCCESS);
    EXPECT(pthread_join(thread, &status) == 0 && (intptr_t)status == ONNXIFI_STATUS_BACKEND_UNAVAILABLE);
    IS(onnxWaitEvent(after.event), BACKEND_UNAVAILABLE);
    IS(onnxGetBackendIDs(NULL, &count), FALLBACK);
    EXPECT(count == 1);
    IS(plug(ids[0]), SUCCESS);
    IS(onnxGetBackendCompatibility(ids[0], 1, "M"), SUCCESS);
    IS(onnxSignalEvent(before.event), BACKEND_UNAVAILABLE);
    IS(onnxRunGraph(graph, &before, &after), BACKEND_UNAVAILABLE);
    IS(onnxReleaseEvent(before.event), SUCCESS);
    IS(onnxReleaseEvent(after.event), SUCCESS);
}

/* a forked child is refused, and does not hang because of its parent's threads */
static void case_fork(void) {
    onnxEvent waited = event(), made;
    pthread_t thread;
    int status;
    EXPECT(pthread_create(&thread, NULL, wait_for, waited) == 0);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    pid_t child = fork();
    if (child == 0) {
        size_t count = 2;
        IS(onnxGetBackendIDs(ids, &count), SUCCESS);
        EXPECT(count == 0);
        IS(onnxInitEvent(backend, &made), BACKEND_UNAVAILABLE);
        IS(onnxWaitEvent(waited), BACKEND_UNAVAILABLE);
        IS(onnxWaitEvent(NULL), INVALID_EVENT);
        IS(onnxReleaseEvent(waited), SUCCESS);
        IS(onnxReleaseGraph(graph), SUCCESS);
        IS(onnxReleaseBackend(backend), SUCCESS);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    IS(onnxSignalEvent(waited), SUCCESS);
    EXPECT(pthread_join(thread, NULL) == 0);
    IS(onnxReleaseEvent(waited), SUCCESS);
}

/* when the interpreter ends, runs and waits end, too; afterwards releases succeed and other calls are refused */
static void case_exit(void) {
    onnxMemoryFenceV1 before = fence(event()), after = fence(NULL);
    size_t count;
    IS(onnxRunGraph(graph, &before, &after), SUCCESS);
    npu_embed_close();
    npu_embed_close();
    IS(onnxWaitEvent(after.event), BACKEND_UNAVAILABLE);
    IS(onnxGetBackendCompatibility(ids[0], 1, "M"), BACKEND_UNAVAILABLE);
    IS(onnxGetBackendIDs(NULL, &count), FALLBACK);
    EXPECT(count == 0);
    IS(onnxReleaseEvent(before.event), SUCCESS);
    IS(onnxReleaseEvent(after.event), SUCCESS);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"ids", case_ids},       {"sizes", case_sizes},   {"handles", case_handles}, {"filter", case_filter},
                 {"binding", case_binding}, {"extensions", case_extensions}, {"inject", case_inject},
                 {"unplug", case_unplug}, {"fork", case_fork},       {"exit", case_exit}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc == 2 && strcmp(argv[1], cases[i].name) == 0) {
            begin();
            cases[i].run();
            IS(onnxReleaseGraph(graph), SUCCESS);
            IS(onnxReleaseBackend(backend), SUCCESS);
            printf("ok\n");
            return 0;
        }
    }
    fprintf(stderr, "core_cases: no such case\n");
    return 2;
}
