/* A client of an NNAPI support library that uses nothing but its table: support_library_client LIBRARY. */
#define _GNU_SOURCE /* O_TMPFILE */
#include <NeuralNetworksSupportLibraryImpl.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                                \
    do {                                                                 \
        if (!(condition)) {                                              \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);      \
            exit(1);                                                     \
        }                                                                \
    } while (0)
#define OK(call) EXPECT((call) == ANEURALNETWORKS_NO_ERROR)

static const NnApiSLDriverImplFL8 *sl8;
static const NnApiSLDriverImplFL5 *sl;
static int told[2], kinds;

static void on_compilation(const void *context, const ANeuralNetworksDiagnosticCompilationInfo *info)
{
    EXPECT(context == &told);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getErrorCode(info) == ANEURALNETWORKS_NO_ERROR);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getNnApiVersion(info) == ANEURALNETWORKS_FEATURE_LEVEL_8);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getInputDataClass(info) == ANNDIAG_DATA_CLASS_FLOAT32);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getOutputDataClass(info) == ANNDIAG_DATA_CLASS_FLOAT32);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_isCachingEnabled(info));
    EXPECT(!sl->SL_ANeuralNetworksDiagnosticCompilationInfo_isControlFlowUsed(info));
    EXPECT(!sl->SL_ANeuralNetworksDiagnosticCompilationInfo_areDynamicTensorsUsed(info));
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getSessionId(info) == getpid());
    EXPECT(strstr(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getDeviceIds(info), "npusim-tiny=npusim "));
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getCompilationTimeNanos(info) < UINT64_C(1) << 40);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticCompilationInfo_getModelArchHash(info) != NULL);
    told[0]++;
}

static void on_execution(const void *context, const ANeuralNetworksDiagnosticExecutionInfo *info)
{
    EXPECT(context == &told);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticExecutionInfo_getErrorCode(info) == ANEURALNETWORKS_NO_ERROR);
    EXPECT(sl->SL_ANeuralNetworksDiagnosticExecutionInfo_getExecutionMode(info) == ANNDIAG_EXECUTION_MODE_SYNC);
    uint64_t driver = sl->SL_ANeuralNetworksDiagnosticExecutionInfo_getDriverExecutionTimeNanos(info);
    uint64_t hardware = sl->SL_ANeuralNetworksDiagnosticExecutionInfo_getHardwareExecutionTimeNanos(info);
    EXPECT(0 < hardware && hardware < driver && driver < 1000000);
    told[1]++;
}

static void on_performance(SL_ANeuralNetworksOperandPerformanceInfo info, void *context)
{
    EXPECT(context == &kinds);
    EXPECT(info.operandType >= 0 && info.operandType < 16 && info.performanceInfo.execTime > 0);
    kinds++;
}

static void on_type(SL_ANeuralNetworksExtensionOperandTypeInformation info, void *context)
{
    EXPECT(context == &kinds && info.byteSize > 0);
    kinds++;
}

/* y = a x b, two matrices of 2 x 2. */
static ANeuralNetworksModel *product(void)
{
    const uint32_t dims[] = {2, 2}, in[] = {0, 1, 2, 3}, out[] = {4};
    const ANeuralNetworksOperandType tensor = {ANEURALNETWORKS_TENSOR_FLOAT32, 2, dims, 0, 0};
    const ANeuralNetworksOperandType flag = {ANEURALNETWORKS_BOOL, 0, NULL, 0, 0};
    const bool no = false;
    ANeuralNetworksModel *model;
    OK(sl->ANeuralNetworksModel_create(&model));
    for (int i = 0; i < 5; i++) OK(sl->ANeuralNetworksModel_addOperand(model, i == 2 || i == 3 ? &flag : &tensor));
    for (int i = 2; i < 4; i++) OK(sl->ANeuralNetworksModel_setOperandValue(model, i, &no, sizeof no));
    OK(sl->ANeuralNetworksModel_addOperation(model, ANEURALNETWORKS_BATCH_MATMUL, 4, in, 1, out));
    OK(sl->ANeuralNetworksModel_identifyInputsAndOutputs(model, 2, in, 1, out));
    OK(sl->ANeuralNetworksModel_finish(model));
    return model;
}

static void compute(ANeuralNetworksModel *model, const ANeuralNetworksDevice *device, int model_file, int data_file)
{
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, wanted[] = {19, 22, 43, 50};
    const uint8_t token[32] = {7};
    float y[4] = {0};
    ANeuralNetworksCompilation *compilation;
    ANeuralNetworksExecution *execution;
    OK(sl->ANeuralNetworksCompilation_createForDevices(model, &device, 1, &compilation));
    OK(sl->SL_ANeuralNetworksCompilation_setCachingFromFds(compilation, &model_file, 1, &data_file, 1, token));
    OK(sl->ANeuralNetworksCompilation_finish(compilation));
    OK(sl->ANeuralNetworksExecution_create(compilation, &execution));
    OK(sl->ANeuralNetworksExecution_setMeasureTiming(execution, true));
    OK(sl->ANeuralNetworksExecution_setInput(execution, 0, NULL, a, sizeof a));
    OK(sl->ANeuralNetworksExecution_setInput(execution, 1, NULL, b, sizeof b));
    OK(sl->ANeuralNetworksExecution_setOutput(execution, 0, NULL, y, sizeof y));
    OK(sl->ANeuralNetworksExecution_compute(execution));
    EXPECT(memcmp(y, wanted, sizeof y) == 0);
    sl->ANeuralNetworksExecution_free(execution);
    sl->ANeuralNetworksCompilation_free(compilation);
}

int main(int count, char **words)
{
    void *library = dlopen(count > 1 ? words[1] : "libneuralnetworks.so", RTLD_NOW | RTLD_LOCAL);
    EXPECT(library);
    NnApiSLDriverImpl *(*get)(void);
    *(void **)&get = dlsym(library, "ANeuralNetworks_getSLDriverImpl");
    EXPECT(get && get()->implFeatureLevel == ANEURALNETWORKS_FEATURE_LEVEL_8);
    sl8 = (const NnApiSLDriverImplFL8 *)(void *)get();
    sl = &sl8->base;
    EXPECT(sl->ANeuralNetworks_getRuntimeFeatureLevel() == ANEURALNETWORKS_FEATURE_LEVEL_8);

    ANeuralNetworksDevice *device;
    OK(sl->ANeuralNetworks_getDevice(0, &device));
    uint32_t files[2], extensions;
    OK(sl->SL_ANeuralNetworksDevice_getNumberOfCacheFilesNeeded(device, &files[0], &files[1]));
    EXPECT(files[0] == 1 && files[1] == 1);
    SL_ANeuralNetworksPerformanceInfo info[4];
    for (int kind = 0; kind < 4; kind++) {
        OK(sl->SL_ANeuralNetworksDevice_getPerformanceInfo(device, kind, &info[kind]));
        EXPECT(info[kind].execTime > 0 && info[kind].powerUsage > 0);
    }
    EXPECT(sl->SL_ANeuralNetworksDevice_getPerformanceInfo(device, 4, info) == ANEURALNETWORKS_BAD_DATA);
    OK(sl->SL_ANeuralNetworksDevice_forEachOperandPerformanceInfo(device, &kinds, on_performance));
    EXPECT(kinds == 15);
    OK(sl->SL_ANeuralNetworksDevice_getVendorExtensionCount(device, &extensions));
    for (uint32_t i = 0; i < extensions; i++) {
        const char *name;
        OK(sl->SL_ANeuralNetworksDevice_getVendorExtensionName(device, i, &name));
        EXPECT(strchr(name, '.'));
        OK(sl->SL_ANeuralNetworksDevice_forEachVendorExtensionOperandTypeInformation(device, i, &kinds, on_type));
    }
    const char *none;
    EXPECT(sl->SL_ANeuralNetworksDevice_getVendorExtensionName(device, extensions, &none) == ANEURALNETWORKS_BAD_DATA);

    sl->SL_ANeuralNetworksDiagnostic_registerCallbacks(on_compilation, on_execution, &told);
    ANeuralNetworksModel *model = product();
    int model_file = open(".", O_TMPFILE | O_RDWR, 0600), data_file = open(".", O_TMPFILE | O_RDWR, 0600);
    EXPECT(model_file >= 0 && data_file >= 0);
    compute(model, device, model_file, data_file);
    off_t written = lseek(model_file, 0, SEEK_END);
    EXPECT(written > 0);
    compute(model, device, model_file, data_file); /* from the files */
    EXPECT(told[0] == 2 && told[1] == 2);
    sl->SL_ANeuralNetworksDiagnostic_registerCallbacks(NULL, NULL, NULL);

    /* What level 8 has beyond level 5. */
    ANeuralNetworksCompilation *compilation;
    OK(sl->ANeuralNetworksCompilation_createForDevices(model, (const ANeuralNetworksDevice *const *)&device, 1, &compilation));
    EXPECT(sl8->ANeuralNetworksCompilation_addExtensionAttribute(compilation, "com.none", 1, "x", 1) == ANEURALNETWORKS_BAD_DATA);
    OK(sl8->ANeuralNetworksCompilation_addExtensionAttribute(compilation, "com.example.fibonacci", 1, "x", 1));
    int wrong = -1;
    EXPECT(sl->SL_ANeuralNetworksCompilation_setCachingFromFds(compilation, &wrong, 1, &wrong, 1, (const uint8_t *)
           "12345678901234567890123456789012") == ANEURALNETWORKS_BAD_DATA);
    OK(sl->ANeuralNetworksCompilation_finish(compilation));
    EXPECT(told[0] == 2);
    sl->ANeuralNetworksCompilation_free(compilation);
    sl->ANeuralNetworksModel_free(model);
    puts("done");
    return 0;
}
