/* The table of an NNAPI support library: the functions of the C API, and those of support libraries alone. */
#include "NeuralNetworksSupportLibraryImpl.h"

#include "neuralnetworks_call.h"

/* What Python tells of a finished compilation or execution; hal.nnapi.capi.diagnostics has the same fields. */
typedef struct info {
    int64_t version;
    uint64_t nanoseconds[3];
    const char *devices;
    int32_t session;
    int32_t error;
    int32_t mode;
    int32_t inputs;
    int32_t outputs;
    bool caching;
    bool control_flow;
    bool dynamic;
    uint8_t hash[32];
} info;

STATIC_FUNCTION(SL_ANeuralNetworksCompilation_setCachingFromFds,
    (ANeuralNetworksCompilation *compilation, const int *modelCacheFds, const uint32_t numModelCacheFiles,
        const int *dataCacheFds, const uint32_t numDataCacheFiles, const uint8_t *token),
    POINTER(compilation), POINTER(modelCacheFds), INTEGER(numModelCacheFiles), POINTER(dataCacheFds),
        INTEGER(numDataCacheFiles), POINTER(token))
STATIC_FUNCTION(SL_ANeuralNetworksDevice_getNumberOfCacheFilesNeeded,
    (const ANeuralNetworksDevice *device, uint32_t *numModelCacheFiles, uint32_t *numDataCacheFiles),
    POINTER(device), POINTER(numModelCacheFiles), POINTER(numDataCacheFiles))
STATIC_FUNCTION(SL_ANeuralNetworksDevice_getPerformanceInfo,
    (const ANeuralNetworksDevice *device, int32_t performanceInfoKind,
        SL_ANeuralNetworksPerformanceInfo *performanceInfo),
    POINTER(device), INTEGER(performanceInfoKind), POINTER(performanceInfo))
STATIC_FUNCTION(SL_ANeuralNetworksDevice_forEachOperandPerformanceInfo,
    (const ANeuralNetworksDevice *device, void *context, void (*callback)(SL_ANeuralNetworksOperandPerformanceInfo,
        void *)),
    POINTER(device), POINTER(context), POINTER(callback))
STATIC_FUNCTION(SL_ANeuralNetworksDevice_getVendorExtensionCount,
    (const ANeuralNetworksDevice *device, uint32_t *vendorExtensionCount),
    POINTER(device), POINTER(vendorExtensionCount))
STATIC_FUNCTION(SL_ANeuralNetworksDevice_getVendorExtensionName,
    (const ANeuralNetworksDevice *device, uint32_t vendorExtensionIndex, const char **extensionName),
    POINTER(device), INTEGER(vendorExtensionIndex), POINTER(extensionName))
STATIC_FUNCTION(SL_ANeuralNetworksDevice_forEachVendorExtensionOperandTypeInformation,
    (const ANeuralNetworksDevice *device, uint32_t vendorExtensionIndex, void *context,
        void (*callback)(SL_ANeuralNetworksExtensionOperandTypeInformation, void *)),
    POINTER(device), INTEGER(vendorExtensionIndex), POINTER(context), POINTER(callback))

static void SL_ANeuralNetworksDiagnostic_registerCallbacks(
    ANeuralNetworksDiagnosticCompilationFinishedCallback compilationCallback,
    ANeuralNetworksDiagnosticExecutionFinishedCallback executionCallback, void *callbackContext)
{
    const int64_t words[] = {POINTER(compilationCallback), POINTER(executionCallback), POINTER(callbackContext)};
    (void)npu_nnapi_call("SL_ANeuralNetworksDiagnostic_registerCallbacks", words, COUNT(words));
}

#define FIELD(kind, type, name, field)                                                                            \
    static type SL_ANeuralNetworksDiagnostic##kind##Info_##name(const ANeuralNetworksDiagnostic##kind##Info *of)   \
    {                                                                                                             \
        return (type)((const info *)(const void *)of)->field;                                                     \
    }

FIELD(Compilation, int32_t, getSessionId, session)
FIELD(Compilation, int64_t, getNnApiVersion, version)
FIELD(Compilation, const uint8_t *, getModelArchHash, hash)
FIELD(Compilation, const char *, getDeviceIds, devices)
FIELD(Compilation, int32_t, getErrorCode, error)
FIELD(Compilation, ANeuralNetworksDiagnosticDataClass, getInputDataClass, inputs)
FIELD(Compilation, ANeuralNetworksDiagnosticDataClass, getOutputDataClass, outputs)
FIELD(Compilation, uint64_t, getCompilationTimeNanos, nanoseconds[0])
FIELD(Compilation, bool, isCachingEnabled, caching)
FIELD(Compilation, bool, isControlFlowUsed, control_flow)
FIELD(Compilation, bool, areDynamicTensorsUsed, dynamic)
FIELD(Execution, int32_t, getSessionId, session)
FIELD(Execution, int64_t, getNnApiVersion, version)
FIELD(Execution, const uint8_t *, getModelArchHash, hash)
FIELD(Execution, const char *, getDeviceIds, devices)
FIELD(Execution, ANeuralNetworksDiagnosticExecutionMode, getExecutionMode, mode)
FIELD(Execution, ANeuralNetworksDiagnosticDataClass, getInputDataClass, inputs)
FIELD(Execution, ANeuralNetworksDiagnosticDataClass, getOutputDataClass, outputs)
FIELD(Execution, uint32_t, getErrorCode, error)
FIELD(Execution, uint64_t, getRuntimeExecutionTimeNanos, nanoseconds[0])
FIELD(Execution, uint64_t, getDriverExecutionTimeNanos, nanoseconds[1])
FIELD(Execution, uint64_t, getHardwareExecutionTimeNanos, nanoseconds[2])
FIELD(Execution, bool, isCachingEnabled, caching)
FIELD(Execution, bool, isControlFlowUsed, control_flow)
FIELD(Execution, bool, areDynamicTensorsUsed, dynamic)

#define OWN(name) .name = name

static NnApiSLDriverImplFL8 table = {
    .base =
        {
            .base = {ANEURALNETWORKS_FEATURE_LEVEL_8},
            OWN(ANeuralNetworksBurst_create),
            OWN(ANeuralNetworksBurst_free),
            OWN(ANeuralNetworksCompilation_createForDevices),
            OWN(ANeuralNetworksCompilation_finish),
            OWN(ANeuralNetworksCompilation_free),
            OWN(ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput),
            OWN(ANeuralNetworksCompilation_getPreferredMemoryAlignmentForOutput),
            OWN(ANeuralNetworksCompilation_getPreferredMemoryPaddingForInput),
            OWN(ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput),
            OWN(ANeuralNetworksCompilation_setCaching),
            OWN(ANeuralNetworksCompilation_setPreference),
            OWN(ANeuralNetworksCompilation_setPriority),
            OWN(ANeuralNetworksCompilation_setTimeout),
            OWN(ANeuralNetworksDevice_getExtensionSupport),
            OWN(ANeuralNetworksDevice_getFeatureLevel),
            OWN(ANeuralNetworksDevice_getName),
            OWN(ANeuralNetworksDevice_getType),
            OWN(ANeuralNetworksDevice_getVersion),
            OWN(ANeuralNetworksDevice_wait),
            OWN(ANeuralNetworksEvent_createFromSyncFenceFd),
            OWN(ANeuralNetworksEvent_free),
            OWN(ANeuralNetworksEvent_getSyncFenceFd),
            OWN(ANeuralNetworksEvent_wait),
            OWN(ANeuralNetworksExecution_burstCompute),
            OWN(ANeuralNetworksExecution_compute),
            OWN(ANeuralNetworksExecution_create),
            OWN(ANeuralNetworksExecution_enableInputAndOutputPadding),
            OWN(ANeuralNetworksExecution_free),
            OWN(ANeuralNetworksExecution_getDuration),
            OWN(ANeuralNetworksExecution_getOutputOperandDimensions),
            OWN(ANeuralNetworksExecution_getOutputOperandRank),
            OWN(ANeuralNetworksExecution_setInput),
            OWN(ANeuralNetworksExecution_setInputFromMemory),
            OWN(ANeuralNetworksExecution_setLoopTimeout),
            OWN(ANeuralNetworksExecution_setMeasureTiming),
            OWN(ANeuralNetworksExecution_setOutput),
            OWN(ANeuralNetworksExecution_setOutputFromMemory),
            OWN(ANeuralNetworksExecution_setReusable),
            OWN(ANeuralNetworksExecution_setTimeout),
            OWN(ANeuralNetworksExecution_startComputeWithDependencies),
            OWN(ANeuralNetworksMemoryDesc_addInputRole),
            OWN(ANeuralNetworksMemoryDesc_addOutputRole),
            OWN(ANeuralNetworksMemoryDesc_create),
            OWN(ANeuralNetworksMemoryDesc_finish),
            OWN(ANeuralNetworksMemoryDesc_free),
            OWN(ANeuralNetworksMemoryDesc_setDimensions),
            OWN(ANeuralNetworksMemory_copy),
            OWN(ANeuralNetworksMemory_createFromAHardwareBuffer),
            OWN(ANeuralNetworksMemory_createFromDesc),
            OWN(ANeuralNetworksMemory_createFromFd),
            OWN(ANeuralNetworksMemory_free),
            OWN(ANeuralNetworksModel_addOperand),
            OWN(ANeuralNetworksModel_addOperation),
            OWN(ANeuralNetworksModel_create),
            OWN(ANeuralNetworksModel_finish),
            OWN(ANeuralNetworksModel_free),
            OWN(ANeuralNetworksModel_getExtensionOperandType),
            OWN(ANeuralNetworksModel_getExtensionOperationType),
            OWN(ANeuralNetworksModel_getSupportedOperationsForDevices),
            OWN(ANeuralNetworksModel_identifyInputsAndOutputs),
            OWN(ANeuralNetworksModel_relaxComputationFloat32toFloat16),
            OWN(ANeuralNetworksModel_setOperandExtensionData),
            OWN(ANeuralNetworksModel_setOperandSymmPerChannelQuantParams),
            OWN(ANeuralNetworksModel_setOperandValue),
            OWN(ANeuralNetworksModel_setOperandValueFromMemory),
            OWN(ANeuralNetworksModel_setOperandValueFromModel),
            OWN(ANeuralNetworks_getDefaultLoopTimeout),
            OWN(ANeuralNetworks_getDevice),
            OWN(ANeuralNetworks_getDeviceCount),
            OWN(ANeuralNetworks_getMaximumLoopTimeout),
            OWN(ANeuralNetworks_getRuntimeFeatureLevel),
            OWN(SL_ANeuralNetworksCompilation_setCachingFromFds),
            OWN(SL_ANeuralNetworksDevice_getNumberOfCacheFilesNeeded),
            OWN(SL_ANeuralNetworksDevice_getPerformanceInfo),
            OWN(SL_ANeuralNetworksDevice_forEachOperandPerformanceInfo),
            OWN(SL_ANeuralNetworksDevice_getVendorExtensionCount),
            OWN(SL_ANeuralNetworksDevice_getVendorExtensionName),
            OWN(SL_ANeuralNetworksDevice_forEachVendorExtensionOperandTypeInformation),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getSessionId),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getNnApiVersion),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getModelArchHash),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getDeviceIds),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getErrorCode),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getInputDataClass),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getOutputDataClass),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_getCompilationTimeNanos),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_isCachingEnabled),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_isControlFlowUsed),
            OWN(SL_ANeuralNetworksDiagnosticCompilationInfo_areDynamicTensorsUsed),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getSessionId),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getNnApiVersion),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getModelArchHash),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getDeviceIds),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getExecutionMode),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getInputDataClass),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getOutputDataClass),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getErrorCode),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getRuntimeExecutionTimeNanos),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getDriverExecutionTimeNanos),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_getHardwareExecutionTimeNanos),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_isCachingEnabled),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_isControlFlowUsed),
            OWN(SL_ANeuralNetworksDiagnosticExecutionInfo_areDynamicTensorsUsed),
            OWN(SL_ANeuralNetworksDiagnostic_registerCallbacks),
        },
    OWN(ANeuralNetworksCompilation_addExtensionAttribute),
    OWN(ANeuralNetworksExecution_addExtensionAttribute),
};

EXPORT NnApiSLDriverImpl *ANeuralNetworks_getSLDriverImpl(void)
{
    return &table.base.base;
}
