/* A client that loads a library with dlopen, as real ones do: dlopen_client LIBRARY MODEL MODE.
 *
 * Prints what the comment of each mode says. */
#define _GNU_SOURCE
#include "dlopen_client.h"

/* count: the number of devices. */
static void mode_count(void) { list(); }

/* run: on every device. */
static void mode_run(void) { everything(); }

static void *first_call(void *barrier) {
    onnxBackendID own[16];
    size_t room = 16;
    pthread_barrier_wait(barrier);
    EXPECT(api.GetBackendIDs(own, &room) == ONNXIFI_STATUS_SUCCESS);
    return NULL;
}

static void *many_runs(void *backend) {
    const char *wanted = getenv("RUNS");
    int runs = wanted != NULL ? atoi(wanted) : 50;
    onnxGraph graph = graph_of(backend);
    for (int i = 0; i < runs; i++) {
        run(backend, graph, (float)i);
        if (i % 100 == 99) {
            EXPECT(api.ReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
            graph = graph_of(backend);
        }
    }
    EXPECT(api.ReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
    return NULL;
}

static void in_threads(void *(*body)(void *), void *argument, int threads) {
    pthread_t all[8];
    for (int i = 0; i < threads; i++) {
        EXPECT(pthread_create(&all[i], NULL, body, argument) == 0);
    }
    for (int i = 0; i < threads; i++) {
        EXPECT(pthread_join(all[i], NULL) == 0);
    }
}

/* threads: eight make the first call at the same time, then run RUNS times each (default 50). */
static void mode_threads(void) {
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 8);
    in_threads(first_call, &barrier, 8);
    list();
    in_threads(many_runs, backend_of(0), 8);
}

/* fork: the child of a process that has used the library has no devices, and its inherited handles are refused. */
static void mode_fork(void) {
    int status;
    everything();
    list();
    onnxBackend backend = backend_of(0);
    onnxGraph graph = graph_of(backend);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        size_t room = 16;
        onnxEvent event;
        EXPECT(api.InitEvent(backend, &event) == ONNXIFI_STATUS_BACKEND_UNAVAILABLE);
        EXPECT(api.ReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
        EXPECT(api.GetBackendIDs(ids, &room) == ONNXIFI_STATUS_SUCCESS && room == 0);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    run(backend, graph, 3); /* the parent continues */
}

/* early: the child of a process that has not used the library yet is a normal process. */
static void mode_early(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        everything();
        _exit(count > 0 ? 0 : 1);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    everything();
}

static onnxBackend last_backend;
static onnxGraph last_graph;

static void at_end(void) {
    onnxEvent event;
    EXPECT(api.InitEvent(last_backend, &event) == ONNXIFI_STATUS_SUCCESS);
    run(last_backend, last_graph, 5);
    EXPECT(api.ReleaseGraph(last_graph) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.ReleaseBackend(last_backend) == ONNXIFI_STATUS_SUCCESS);
    puts("ended");
}

/* atexit: uses and releases everything after main(). Prints "ended", too. */
static void mode_atexit(void) {
    list();
    last_backend = backend_of(0);
    last_graph = graph_of(last_backend);
    atexit(at_end);
}

/* leak: releases nothing, and ends with a run that waits for its input. */
static void mode_leak(void) {
    static float x[4], y[4];
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    onnxMemoryFenceV1 before = {.tag = ONNXIFI_TAG_MEMORY_FENCE_V1}, after = before;
    list();
    onnxBackend backend = backend_of(0);
    onnxGraph graph = graph_of(backend);
    EXPECT(api.SetGraphIO(graph, 1, &in, 1, &out) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.InitEvent(backend, &before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.RunGraph(graph, &before, &after) == ONNXIFI_STATUS_SUCCESS);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"count", mode_count}, {"run", mode_run},     {"threads", mode_threads}, {"fork", mode_fork},
                 {"early", mode_early}, {"atexit", mode_atexit}, {"leak", mode_leak}};
    EXPECT(argc == 4);
    prepare(argv[1], RTLD_LOCAL, argv[2]);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[3], modes[i].name) == 0) {
            modes[i].run();
            printf("%zu devices\n", count);
            return 0;
        }
    }
    fprintf(stderr, "client: no such mode\n");
    return 2;
}
