/* A client of libneuralnetworks.so that is independent of Python: nnapi_client MODE. */
#include <NeuralNetworks.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                \
    do {                                                                 \
        if (!(condition)) {                                              \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);      \
            _exit(1);                                                    \
        }                                                                \
    } while (0)
#define OK(call) EXPECT((call) == ANEURALNETWORKS_NO_ERROR)

static ANeuralNetworksModel *model;
static ANeuralNetworksCompilation *compilation;

/* y = a + b, four numbers each. */
static void prepare(void) {
    const uint32_t dims[] = {4}, in[] = {0, 1, 2}, ends[] = {0, 1}, out[] = {3};
    const ANeuralNetworksOperandType tensor = {ANEURALNETWORKS_TENSOR_FLOAT32, 1, dims, 0, 0};
    const ANeuralNetworksOperandType scalar = {ANEURALNETWORKS_INT32, 0, NULL, 0, 0};
    const int32_t none = ANEURALNETWORKS_FUSED_NONE;
    OK(ANeuralNetworksModel_create(&model));
    for (int i = 0; i < 4; i++) OK(ANeuralNetworksModel_addOperand(model, i == 2 ? &scalar : &tensor));
    OK(ANeuralNetworksModel_setOperandValue(model, 2, &none, sizeof none));
    OK(ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_ADD, 3, in, 1, out));
    OK(ANeuralNetworksModel_identifyInputsAndOutputs(model, 2, ends, 1, out));
    OK(ANeuralNetworksModel_finish(model));
    OK(ANeuralNetworksCompilation_create(model, &compilation));
    OK(ANeuralNetworksCompilation_finish(compilation));
}

static ANeuralNetworksExecution *execution_of(const float *a, const float *b, float *y) {
    ANeuralNetworksExecution *execution;
    OK(ANeuralNetworksExecution_create(compilation, &execution));
    OK(ANeuralNetworksExecution_setInput(execution, 0, NULL, a, 16));
    OK(ANeuralNetworksExecution_setInput(execution, 1, NULL, b, 16));
    OK(ANeuralNetworksExecution_setOutput(execution, 0, NULL, y, 16));
    return execution;
}

static void compute(float seed) {
    const float a[] = {seed, 2, 3, 4}, b[] = {10, 20, 30, 40};
    float y[4] = {0};
    ANeuralNetworksExecution *execution = execution_of(a, b, y);
    ANeuralNetworksEvent *event;
    OK(ANeuralNetworksExecution_startCompute(execution, &event));
    OK(ANeuralNetworksEvent_wait(event));
    ANeuralNetworksEvent_free(event);
    ANeuralNetworksExecution_free(execution);
    for (int i = 0; i < 4; i++) EXPECT(y[i] == a[i] + b[i]);
}

static void release(void) {
    ANeuralNetworksCompilation_free(compilation);
    ANeuralNetworksModel_free(model);
    EXPECT(ANeuralNetworksModel_finish(model) == ANEURALNETWORKS_BAD_DATA);
}

static uint32_t devices(void) {
    uint32_t count = 99;
    OK(ANeuralNetworks_getDeviceCount(&count));
    return count;
}

static void mode_run(void) {
    prepare();
    compute(1);
    release();
}

/* Eight threads make the first call of the process at the same time. */
static pthread_barrier_t start;

static void *work(void *seed) {
    pthread_barrier_wait(&start);
    EXPECT(devices() == 1);
    pthread_barrier_wait(&start);
    for (int i = 0; i < 25; i++) compute((float)(intptr_t)seed);
    return NULL;
}

static void mode_threads(void) {
    pthread_t threads[8];
    EXPECT(pthread_barrier_init(&start, NULL, 9) == 0);
    for (intptr_t i = 0; i < 8; i++) EXPECT(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    pthread_barrier_wait(&start);
    prepare();
    pthread_barrier_wait(&start);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    release();
}

static void in_child(void (*work_of_child)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        work_of_child();
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

/* The child of a process that has used the library has no devices; inherited handles are dead. */
static void after_use(void) {
    ANeuralNetworksModel *own = (void *)1;
    EXPECT(ANeuralNetworksCompilation_finish(compilation) == ANEURALNETWORKS_DEAD_OBJECT);
    EXPECT(ANeuralNetworksModel_create(&own) == ANEURALNETWORKS_DEAD_OBJECT);
    EXPECT(ANeuralNetworks_getRuntimeFeatureLevel() == 1000008);
    ANeuralNetworksModel_free(model);
}

static void mode_fork(void) {
    prepare();
    in_child(after_use);
    compute(1);
    release();
}

/* The child of a process that has not used it yet is a normal process. */
static void mode_early(void) {
    in_child(mode_run);
    mode_run();
}

static void at_end(void) {
    compute(2);
    release();
    puts("ended");
}

static void mode_atexit(void) {
    EXPECT(atexit(at_end) == 0);
    prepare();
    compute(1);
}

/* No interpreter: there are no devices, and nothing crashes. */
static void mode_none(void) {
    ANeuralNetworksModel *none = (void *)1;
    ANeuralNetworksDevice *device = NULL;
    EXPECT(devices() == 0);
    EXPECT(ANeuralNetworks_getDeviceCount(NULL) != ANEURALNETWORKS_NO_ERROR);
    EXPECT(ANeuralNetworks_getDevice(0, &device) == ANEURALNETWORKS_UNAVAILABLE_DEVICE);
    EXPECT(ANeuralNetworksModel_create(&none) == ANEURALNETWORKS_UNAVAILABLE_DEVICE);
    EXPECT(ANeuralNetworks_getMaximumLoopTimeout() == UINT64_C(15000000000));
    ANeuralNetworksModel_free(NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"run", mode_run},     {"threads", mode_threads}, {"fork", mode_fork},
                 {"early", mode_early}, {"atexit", mode_atexit},   {"none", mode_none}};
    for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            puts("done");
            return 0;
        }
    }
    return 2;
}
