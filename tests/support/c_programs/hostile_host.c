/* A host process that is hostile to the library that it loads: hostile_host LIBRARY MODEL MODE [ARGUMENT].
 *
 * Every mode ends with 0 if everything went as its comment says, and with 1 after a line that names the failure. */
#define _GNU_SOURCE
#include "dlopen_client.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <ucontext.h>

static const char *argument = "";

static void *do_everything(void *unused) {
    (void)unused;
    everything();
    return NULL;
}

static void in_thread_of(size_t stack, void *(*body)(void *)) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    EXPECT(stack == 0 || pthread_attr_setstacksize(&attributes, stack) == 0);
    EXPECT(pthread_create(&thread, &attributes, body, NULL) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attributes);
}

/* stack BYTES: all calls, including the first one, come from a thread with a stack of this size. */
static void mode_stack(void) {
    size_t bytes = strtoul(argument, NULL, 0);
    in_thread_of(bytes < (size_t)PTHREAD_STACK_MIN ? (size_t)PTHREAD_STACK_MIN : bytes, do_everything);
    in_thread_of(bytes < (size_t)PTHREAD_STACK_MIN ? (size_t)PTHREAD_STACK_MIN : bytes, do_everything);
}

/* ended: the thread of the first call, which starts Python, has ended before the other calls. */
static void mode_ended(void) {
    in_thread_of(0, do_everything);
    everything();
    in_thread_of(0, do_everything);
}

/* locale: in the locale of the environment; Python does not change it and is not affected by it. */
static void mode_locale(void) {
    char before[256], text[16];
    EXPECT(setlocale(LC_ALL, "") != NULL);
    snprintf(before, sizeof before, "%s", setlocale(LC_ALL, NULL));
    everything();
    EXPECT(strcmp(before, setlocale(LC_ALL, NULL)) == 0);
    snprintf(text, sizeof text, "%.1f", 1.5);
    EXPECT(strlen(text) == 3);
}

/* closed: without standard input, output and error. */
static void mode_closed(void) {
    for (int file = 0; file < 3; file++) {
        close(file);
    }
    everything();
}

static volatile sig_atomic_t interrupts;
static void interrupted(int signal) { (void)signal, interrupts++; }

static void *interrupt_and_signal(void *arguments) {
    void **all = arguments;
    for (int i = 0; i < 1000; i++) {
        EXPECT(pthread_kill(*(pthread_t *)all[0], i % 2 ? SIGINT : SIGTERM) == 0);
    }
    EXPECT(api.SignalEvent(all[1]) == ONNXIFI_STATUS_SUCCESS);
    return NULL;
}

/* signals: an interruption does not end a wait, and the host's signal handlers are kept. */
static void mode_signals(void) {
    struct sigaction action = {.sa_handler = interrupted}, before, now; /* without SA_RESTART */
    pthread_t self = pthread_self(), other;
    onnxEvent event;
    sigaction(SIGINT, NULL, &before);
    list();
    EXPECT(api.InitEvent(backend_of(0), &event) == ONNXIFI_STATUS_SUCCESS);
    sigaction(SIGINT, NULL, &now);
    EXPECT(now.sa_handler == before.sa_handler);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    void *arguments[] = {&self, event};
    EXPECT(pthread_create(&other, NULL, interrupt_and_signal, arguments) == 0);
    EXPECT(api.WaitEvent(event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(pthread_join(other, NULL) == 0 && interrupts > 0);
    everything();
    sigaction(SIGINT, NULL, &now);
    EXPECT(now.sa_handler == interrupted);
}

/* kill: SIGTERM ends a process during a wait. */
static void mode_kill(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        onnxEvent event;
        list();
        EXPECT(api.InitEvent(backend_of(0), &event) == ONNXIFI_STATUS_SUCCESS);
        alarm(1); /* its default action must still end the process */
        (void)!api.WaitEvent(event);
        _exit(1);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
}

static void *run_forever(void *unused) {
    (void)unused;
    onnxBackend backend = backend_of(0);
    onnxGraph graph = graph_of(backend);
    for (float i = 0;; i++) {
        run(backend, graph, i);
    }
    return NULL;
}

/* exit: the process ends while threads run graphs, without waiting for them. */
static void mode_exit(void) {
    pthread_t thread;
    list();
    for (int i = 0; i < 3; i++) {
        EXPECT(pthread_create(&thread, NULL, run_forever, NULL) == 0);
    }
    onnxBackend backend = backend_of(0);
    onnxGraph graph = graph_of(backend);
    for (float i = 0; i < 50; i++) {
        run(backend, graph, i);
    }
    exit(0);
}

/* exec: a child of a process that has used the library executes another one that uses it. */
static void mode_exec(void) {
    int status;
    everything();
    pid_t child = fork();
    if (child == 0) {
        extern char **environ;
        execle("/proc/self/exe", "hosts", argument, getenv("MODEL"), "ended", NULL, environ);
        _exit(127);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    everything();
}

static volatile int started, begun;

static void *first_call(void *unused) {
    onnxBackendID own[16];
    size_t room = 16;
    (void)unused;
    begun = 1;
    EXPECT(api.GetBackendIDs(own, &room) == ONNXIFI_STATUS_SUCCESS);
    started = 1;
    return NULL;
}

/* fork-start: children forked during the first call have no devices, or are normal processes. */
static void mode_fork_start(void) {
    enum { MOST = 20 };
    pthread_t thread;
    pid_t children[MOST];
    int made = 0, status;
    EXPECT(pthread_create(&thread, NULL, first_call, NULL) == 0);
    while (!begun) {
    }
    while (!started && made < MOST) {
        children[made] = fork();
        if (children[made] == 0) {
            alarm(250); /* a busy machine is slow */
            list();
            _exit(0);
        }
        made++;
        usleep(20000); /* spread over the whole start */
    }
    EXPECT(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < made; i++) {
        EXPECT(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    everything();
}

static void limit(int resource, rlim_t value) {
    struct rlimit both;
    getrlimit(resource, &both);
    both.rlim_cur = value;
    EXPECT(setrlimit(resource, &both) == 0);
}

/* files N: at most N open files from before the first call on. Then devices exist and work, or do not exist. */
static void mode_files(void) {
    limit(RLIMIT_NOFILE, strtoul(argument, NULL, 0));
    everything();
}

/* later-files: no file can be opened after the first call. */
static void mode_later_files(void) {
    everything();
    int file = open("/dev/null", O_RDONLY);
    limit(RLIMIT_NOFILE, (rlim_t)file);
    close(file);
    for (int i = 0; i < 5; i++) {
        everything();
    }
}

static rlim_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    EXPECT(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* A run in which any step may fail; everything it has created is released. */
static onnxStatus run_once(onnxBackend backend, onnxGraph graph) {
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    onnxMemoryFenceV1 before = {.tag = ONNXIFI_TAG_MEMORY_FENCE_V1}, after = before;
    onnxStatus status = api.SetGraphIO(graph, 1, &in, 1, &out);
    status = status == ONNXIFI_STATUS_SUCCESS ? api.InitEvent(backend, &before.event) : status;
    status = status == ONNXIFI_STATUS_SUCCESS ? api.SignalEvent(before.event) : status;
    status = status == ONNXIFI_STATUS_SUCCESS ? api.RunGraph(graph, &before, &after) : status;
    status = status == ONNXIFI_STATUS_SUCCESS ? api.WaitEvent(after.event) : status;
    EXPECT(status != ONNXIFI_STATUS_SUCCESS || memcmp(x, y, sizeof x) == 0);
    api.ReleaseEvent(before.event);
    api.ReleaseEvent(after.event);
    return status;
}

static int run_as_far_as_it_goes(void) {
    onnxStatus status = ONNXIFI_STATUS_SUCCESS;
    list();
    for (size_t i = 0; i < count && status == ONNXIFI_STATUS_SUCCESS; i++) {
        onnxBackend backend = NULL;
        onnxGraph graph = NULL;
        status = api.InitBackend(ids[i], NULL, &backend);
        if (status == ONNXIFI_STATUS_SUCCESS) {
#ifdef ONNXIFI_NPUSIM_V1
            status = api.InitGraph(backend, NULL, model_size, model, 0, NULL, &graph);
#else
            status = api.InitGraph(backend, NULL, model_size, model, 0, NULL, &graph, 0, NULL);
#endif
        }
        EXPECT((graph != NULL) == (status == ONNXIFI_STATUS_SUCCESS));
        if (status == ONNXIFI_STATUS_SUCCESS) {
            status = run_once(backend, graph);
        }
        api.ReleaseGraph(graph);
        api.ReleaseBackend(backend);
        api.ReleaseBackendID(ids[i]);
    }
    return status;
}

/* memory BYTES: at most BYTES more address space than before the first call. Prints the status. */
static void mode_memory(void) {
    limit(RLIMIT_AS, address_space() + strtoull(argument, NULL, 0));
    printf("%zu devices, status 0x%04x\n", count, (unsigned)run_as_far_as_it_goes());
}

/* later-memory BYTES: the same from after the first call on. */
static void mode_later_memory(void) {
    list();
    limit(RLIMIT_AS, address_space() + strtoull(argument, NULL, 0));
    printf("%zu devices, status 0x%04x\n", count, (unsigned)run_as_far_as_it_goes());
}

/* again: closed and loaded again during use, and older handles are released. */
static void mode_again(void) {
    list();
    onnxBackend backend = backend_of(0);
    onnxGraph graph = graph_of(backend);
    const char *library = argument;
    for (int i = 0; i < 3; i++) {
        void *first = load(library, RTLD_LOCAL);
        EXPECT(dlclose(first) == 0);
        EXPECT(dlclose(load(library, RTLD_LOCAL)) == 0);
        run(backend, graph, (float)i);
    }
    EXPECT(api.ReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
}

/* The initial mode of a program linked with -ffast-math: denormals are zeros. */
static void flush_denormals(void) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" ::"r"(control | UINT64_C(1) << 24));
#endif
}

static bool keeps_denormals(void) {
    volatile float denormal = 1e-40f, half = 0.5f;
    return denormal * half != 0;
}

/* One run of the model y = x / 10, which must give the bits of the default environment. */
static void divide(onnxBackend backend, onnxGraph graph, const float *x, const float *expected) {
    float y[4] = {0};
    onnxTensorDescriptorV1 in = describe("x", x), out = describe("y", y);
    onnxMemoryFenceV1 before = {.tag = ONNXIFI_TAG_MEMORY_FENCE_V1}, after = before;
    EXPECT(api.SetGraphIO(graph, 1, &in, 1, &out) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.InitEvent(backend, &before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.SignalEvent(before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.RunGraph(graph, &before, &after) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.WaitEvent(after.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(memcmp(y, expected, sizeof y) == 0);
    EXPECT(api.ReleaseEvent(before.event) == ONNXIFI_STATUS_SUCCESS);
    EXPECT(api.ReleaseEvent(after.event) == ONNXIFI_STATUS_SUCCESS);
}

/* floats HOW: with flushed denormals, another rounding, or trapping exceptions from before the first call on. After
 * each call the host's mode must be the same again, and no result may be computed in it. The model is y = x / 10. */
static void mode_floats(void) {
    volatile float ten = 10;
    float x[4] = {1, 1e-39f, 3, 0}, expected[4];
    bool flush = strcmp(argument, "flush") == 0, trap = strcmp(argument, "trap") == 0;
    int rounding = strcmp(argument, "upward") == 0 ? FE_UPWARD : FE_TONEAREST;
    for (int i = 0; i < 4; i++) {
        expected[i] = x[i] / ten;
    }
    feclearexcept(FE_ALL_EXCEPT);
    EXPECT(fesetround(rounding) == 0);
    if (flush) {
        flush_denormals();
    }
    if (trap) {
        EXPECT(feenableexcept(FE_ALL_EXCEPT) != -1);
    }
    for (int i = 0; i < 2; i++) {
        list();
        onnxBackend backend = backend_of(0);
        onnxGraph graph = graph_of(backend);
        divide(backend, graph, x, expected);
        EXPECT(api.ReleaseGraph(graph) == ONNXIFI_STATUS_SUCCESS);
        EXPECT(api.ReleaseBackend(backend) == ONNXIFI_STATUS_SUCCESS);
        EXPECT(fegetround() == rounding && fegetexcept() == (trap ? FE_ALL_EXCEPT : 0));
        fedisableexcept(FE_ALL_EXCEPT); /* the following results are denormals */
        EXPECT(keeps_denormals() == !flush);
        feclearexcept(FE_ALL_EXCEPT);
        feenableexcept(trap ? FE_ALL_EXCEPT : 0);
    }
}

static void *wait_for_it(void *event) {
    (void)!api.WaitEvent(event);
    pthread_testcancel();
    return NULL;
}

static void *signal_again(void *event) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) {
        (void)!api.SignalEvent(event);
    }
    return NULL;
}

static void *everything_again(void *unused) {
    (void)unused;
    for (;;) {
        everything();
        pthread_testcancel();
    }
    return NULL;
}

static void cancel_after(useconds_t delay, void *(*body)(void *), void *with, onnxEvent signalled) {
    pthread_t thread;
    void *result;
    EXPECT(pthread_create(&thread, NULL, body, with) == 0);
    usleep(delay);
    EXPECT(pthread_cancel(thread) == 0);
    if (signalled != NULL) {
        EXPECT(api.SignalEvent(signalled) == ONNXIFI_STATUS_SUCCESS);
    }
    EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

/* cancel: threads are cancelled anywhere, first the one that starts Python; a call always completes. */
static void mode_cancel(void) {
    onnxEvent event;
    cancel_after(0, everything_again, NULL, NULL);
    for (useconds_t delay = 1; delay < 20000; delay = delay * 3 / 2 + 1) {
        cancel_after(delay, everything_again, NULL, NULL);
    }
    list();
    onnxBackend backend = backend_of(0);
    for (int i = 0; i < 20; i++) {
        EXPECT(api.InitEvent(backend, &event) == ONNXIFI_STATUS_SUCCESS);
        cancel_after(1000, wait_for_it, event, event);
        cancel_after(100, signal_again, event, NULL);
        EXPECT(api.ReleaseEvent(event) == ONNXIFI_STATUS_SUCCESS);
    }
    everything();
}

static ucontext_t outside, inside;
static char room[32 << 10] __attribute__((aligned(64)));

static void *in_context(void *unused) {
    (void)unused;
    getcontext(&inside);
    inside.uc_stack = (stack_t){.ss_sp = room, .ss_size = sizeof room};
    inside.uc_link = &outside;
    makecontext(&inside, everything, 0);
    EXPECT(swapcontext(&outside, &inside) == 0);
    return NULL;
}

static void on_signal(int signal) { (void)signal, everything(); }

/* contexts: every call comes from a 32 KiB stack made by the host, at any address: of the first thread, of another one,
 * of a signal handler. */
static void mode_contexts(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    stack_t alternative = {.ss_sp = room, .ss_size = sizeof room};
    in_context(NULL);
    in_thread_of(0, in_context);
    EXPECT(sigaltstack(&alternative, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    EXPECT(raise(SIGUSR1) == 0);
}

/* apart: a separate second libc cannot load Python; beside it, the library loaded as usual works. */
static void mode_apart(void) {
    onnxGetBackendIDsFunction get_ids;
    size_t found = 1;
    void *library = dlmopen(LM_ID_NEWLM, argument, RTLD_NOW | RTLD_LOCAL);
    *(void **)&get_ids = resolve(library, "onnxGetBackendIDs");
    EXPECT(get_ids(NULL, &found) == ONNXIFI_STATUS_FALLBACK && found == 0);
    everything();
    EXPECT(count > 0);
}

static void mode_run(void) { everything(); }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"run", mode_run},         {"stack", mode_stack},   {"ended", mode_ended},
                 {"locale", mode_locale},   {"closed", mode_closed}, {"signals", mode_signals},
                 {"kill", mode_kill},       {"exit", mode_exit},     {"exec", mode_exec},
                 {"fork-start", mode_fork_start},
                 {"files", mode_files},     {"later-files", mode_later_files},
                 {"memory", mode_memory},   {"later-memory", mode_later_memory},
                 {"again", mode_again},     {"floats", mode_floats}, {"cancel", mode_cancel},
                 {"contexts", mode_contexts},
                 {"apart", mode_apart}};
    EXPECT(argc == 4 || argc == 5);
    argument = argc == 5 ? argv[4] : "";
    prepare(argv[1], RTLD_LOCAL | (getenv("DEEPBIND") != NULL ? RTLD_DEEPBIND : 0), argv[2]);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[3], modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    }
    fprintf(stderr, "hosts: no such mode\n");
    return 2;
}
