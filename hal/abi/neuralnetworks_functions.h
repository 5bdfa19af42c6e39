/* The functions of the NNAPI C API that Python implements: FUNCTION(name, parameters, arguments) for those that return
 * a result code, RELEASE(name, parameter, argument) for those that return nothing. The arguments are 64-bit words; MADE
 * is the place of a new handle. */

FUNCTION(ANeuralNetworks_getDevice,
    (uint32_t devIndex, ANeuralNetworksDevice **device),
    INTEGER(devIndex), POINTER(device))
FUNCTION(ANeuralNetworksDevice_getName,
    (const ANeuralNetworksDevice *device, const char **name),
    POINTER(device), POINTER(name))
FUNCTION(ANeuralNetworksDevice_getVersion,
    (const ANeuralNetworksDevice *device, const char **version),
    POINTER(device), POINTER(version))
FUNCTION(ANeuralNetworksDevice_getType,
    (const ANeuralNetworksDevice *device, int32_t *type),
    POINTER(device), POINTER(type))
FUNCTION(ANeuralNetworksDevice_getFeatureLevel,
    (const ANeuralNetworksDevice *device, int64_t *featureLevel),
    POINTER(device), POINTER(featureLevel))
FUNCTION(ANeuralNetworksDevice_wait, (const ANeuralNetworksDevice *device), POINTER(device))
FUNCTION(ANeuralNetworksDevice_getExtensionSupport,
    (const ANeuralNetworksDevice *device, const char *extensionName, bool *isExtensionSupported),
    POINTER(device), POINTER(extensionName), POINTER(isExtensionSupported))
FUNCTION(ANeuralNetworksMemory_createFromFd,
    (size_t size, int protect, int fd, size_t offset, ANeuralNetworksMemory **memory),
    INTEGER(size), INTEGER(protect), INTEGER(fd), INTEGER(offset), MADE(memory))
FUNCTION(ANeuralNetworksMemory_createFromAHardwareBuffer,
    (const AHardwareBuffer *ahwb, ANeuralNetworksMemory **memory),
    POINTER(ahwb), MADE(memory))
FUNCTION(ANeuralNetworksMemory_createFromDesc,
    (const ANeuralNetworksMemoryDesc *desc, ANeuralNetworksMemory **memory),
    POINTER(desc), MADE(memory))
FUNCTION(ANeuralNetworksMemory_copy,
    (const ANeuralNetworksMemory *src, const ANeuralNetworksMemory *dst),
    POINTER(src), POINTER(dst))
RELEASE(ANeuralNetworksMemory_free, (ANeuralNetworksMemory *memory), POINTER(memory))
FUNCTION(ANeuralNetworksMemoryDesc_create, (ANeuralNetworksMemoryDesc **desc), MADE(desc))
FUNCTION(ANeuralNetworksMemoryDesc_addInputRole,
    (ANeuralNetworksMemoryDesc *desc, const ANeuralNetworksCompilation *compilation, uint32_t index, float frequency),
    POINTER(desc), POINTER(compilation), INTEGER(index), FLOAT(frequency))
FUNCTION(ANeuralNetworksMemoryDesc_addOutputRole,
    (ANeuralNetworksMemoryDesc *desc, const ANeuralNetworksCompilation *compilation, uint32_t index, float frequency),
    POINTER(desc), POINTER(compilation), INTEGER(index), FLOAT(frequency))
FUNCTION(ANeuralNetworksMemoryDesc_setDimensions,
    (ANeuralNetworksMemoryDesc *desc, uint32_t rank, const uint32_t *dimensions),
    POINTER(desc), INTEGER(rank), POINTER(dimensions))
FUNCTION(ANeuralNetworksMemoryDesc_finish, (ANeuralNetworksMemoryDesc *desc), POINTER(desc))
RELEASE(ANeuralNetworksMemoryDesc_free, (ANeuralNetworksMemoryDesc *desc), POINTER(desc))
FUNCTION(ANeuralNetworksModel_create, (ANeuralNetworksModel **model), MADE(model))
FUNCTION(ANeuralNetworksModel_addOperand,
    (ANeuralNetworksModel *model, const ANeuralNetworksOperandType *type),
    POINTER(model), POINTER(type))
FUNCTION(ANeuralNetworksModel_setOperandValue,
    (ANeuralNetworksModel *model, int32_t index, const void *buffer, size_t length),
    POINTER(model), INTEGER(index), POINTER(buffer), INTEGER(length))
FUNCTION(ANeuralNetworksModel_setOperandValueFromMemory,
    (ANeuralNetworksModel *model, int32_t index, const ANeuralNetworksMemory *memory, size_t offset, size_t length),
    POINTER(model), INTEGER(index), POINTER(memory), INTEGER(offset), INTEGER(length))
FUNCTION(ANeuralNetworksModel_setOperandValueFromModel,
    (ANeuralNetworksModel *model, int32_t index, const ANeuralNetworksModel *value),
    POINTER(model), INTEGER(index), POINTER(value))
FUNCTION(ANeuralNetworksModel_setOperandSymmPerChannelQuantParams,
    (ANeuralNetworksModel *model, int32_t index, const ANeuralNetworksSymmPerChannelQuantParams *channelQuant),
    POINTER(model), INTEGER(index), POINTER(channelQuant))
FUNCTION(ANeuralNetworksModel_addOperation,
    (ANeuralNetworksModel *model, ANeuralNetworksOperationType type, uint32_t inputCount, const uint32_t *inputs,
    uint32_t outputCount, const uint32_t *outputs),
    POINTER(model), INTEGER(type), INTEGER(inputCount), POINTER(inputs), INTEGER(outputCount), POINTER(outputs))
FUNCTION(ANeuralNetworksModel_identifyInputsAndOutputs,
    (ANeuralNetworksModel *model, uint32_t inputCount, const uint32_t *inputs, uint32_t outputCount, const uint32_t
    *outputs),
    POINTER(model), INTEGER(inputCount), POINTER(inputs), INTEGER(outputCount), POINTER(outputs))
FUNCTION(ANeuralNetworksModel_relaxComputationFloat32toFloat16,
    (ANeuralNetworksModel *model, bool allow),
    POINTER(model), INTEGER(allow))
FUNCTION(ANeuralNetworksModel_finish, (ANeuralNetworksModel *model), POINTER(model))
RELEASE(ANeuralNetworksModel_free, (ANeuralNetworksModel *model), POINTER(model))
FUNCTION(ANeuralNetworksModel_getSupportedOperationsForDevices,
    (const ANeuralNetworksModel *model, const ANeuralNetworksDevice *const *devices, uint32_t numDevices, bool
    *supportedOps),
    POINTER(model), POINTER(devices), INTEGER(numDevices), POINTER(supportedOps))
FUNCTION(ANeuralNetworksModel_getExtensionOperandType,
    (ANeuralNetworksModel *model, const char *extensionName, uint16_t operandCodeWithinExtension, int32_t *type),
    POINTER(model), POINTER(extensionName), INTEGER(operandCodeWithinExtension), POINTER(type))
FUNCTION(ANeuralNetworksModel_getExtensionOperationType,
    (ANeuralNetworksModel *model, const char *extensionName, uint16_t operationCodeWithinExtension,
    ANeuralNetworksOperationType *type),
    POINTER(model), POINTER(extensionName), INTEGER(operationCodeWithinExtension), POINTER(type))
FUNCTION(ANeuralNetworksModel_setOperandExtensionData,
    (ANeuralNetworksModel *model, int32_t index, const void *data, size_t length),
    POINTER(model), INTEGER(index), POINTER(data), INTEGER(length))
FUNCTION(ANeuralNetworksCompilation_create,
    (ANeuralNetworksModel *model, ANeuralNetworksCompilation **compilation),
    POINTER(model), MADE(compilation))
FUNCTION(ANeuralNetworksCompilation_createForDevices,
    (ANeuralNetworksModel *model, const ANeuralNetworksDevice *const *devices, uint32_t numDevices,
    ANeuralNetworksCompilation **compilation),
    POINTER(model), POINTER(devices), INTEGER(numDevices), MADE(compilation))
FUNCTION(ANeuralNetworksCompilation_setPreference,
    (ANeuralNetworksCompilation *compilation, int32_t preference),
    POINTER(compilation), INTEGER(preference))
FUNCTION(ANeuralNetworksCompilation_setPriority,
    (ANeuralNetworksCompilation *compilation, int priority),
    POINTER(compilation), INTEGER(priority))
FUNCTION(ANeuralNetworksCompilation_setTimeout,
    (ANeuralNetworksCompilation *compilation, uint64_t duration),
    POINTER(compilation), INTEGER(duration))
FUNCTION(ANeuralNetworksCompilation_setCaching,
    (ANeuralNetworksCompilation *compilation, const char *cacheDir, const uint8_t *token),
    POINTER(compilation), POINTER(cacheDir), POINTER(token))
FUNCTION(ANeuralNetworksCompilation_finish, (ANeuralNetworksCompilation *compilation), POINTER(compilation))
RELEASE(ANeuralNetworksCompilation_free, (ANeuralNetworksCompilation *compilation), POINTER(compilation))
FUNCTION(ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput,
    (const ANeuralNetworksCompilation *compilation, uint32_t index, uint32_t *alignment),
    POINTER(compilation), INTEGER(index), POINTER(alignment))
FUNCTION(ANeuralNetworksCompilation_getPreferredMemoryPaddingForInput,
    (const ANeuralNetworksCompilation *compilation, uint32_t index, uint32_t *padding),
    POINTER(compilation), INTEGER(index), POINTER(padding))
FUNCTION(ANeuralNetworksCompilation_getPreferredMemoryAlignmentForOutput,
    (const ANeuralNetworksCompilation *compilation, uint32_t index, uint32_t *alignment),
    POINTER(compilation), INTEGER(index), POINTER(alignment))
FUNCTION(ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput,
    (const ANeuralNetworksCompilation *compilation, uint32_t index, uint32_t *padding),
    POINTER(compilation), INTEGER(index), POINTER(padding))
FUNCTION(ANeuralNetworksCompilation_addExtensionAttribute,
    (ANeuralNetworksCompilation *compilation, const char *extensionName, uint16_t attributeCodeWithinExtension, const
    void *data, size_t length),
    POINTER(compilation), POINTER(extensionName), INTEGER(attributeCodeWithinExtension), POINTER(data), INTEGER(length))
FUNCTION(ANeuralNetworksExecution_create,
    (ANeuralNetworksCompilation *compilation, ANeuralNetworksExecution **execution),
    POINTER(compilation), MADE(execution))
FUNCTION(ANeuralNetworksExecution_setInput,
    (ANeuralNetworksExecution *execution, int32_t index, const ANeuralNetworksOperandType *type, const void *buffer,
    size_t length),
    POINTER(execution), INTEGER(index), POINTER(type), POINTER(buffer), INTEGER(length))
FUNCTION(ANeuralNetworksExecution_setInputFromMemory,
    (ANeuralNetworksExecution *execution, int32_t index, const ANeuralNetworksOperandType *type, const
    ANeuralNetworksMemory *memory, size_t offset, size_t length),
    POINTER(execution), INTEGER(index), POINTER(type), POINTER(memory), INTEGER(offset), INTEGER(length))
FUNCTION(ANeuralNetworksExecution_setOutput,
    (ANeuralNetworksExecution *execution, int32_t index, const ANeuralNetworksOperandType *type, void *buffer, size_t
    length),
    POINTER(execution), INTEGER(index), POINTER(type), POINTER(buffer), INTEGER(length))
FUNCTION(ANeuralNetworksExecution_setOutputFromMemory,
    (ANeuralNetworksExecution *execution, int32_t index, const ANeuralNetworksOperandType *type, const
    ANeuralNetworksMemory *memory, size_t offset, size_t length),
    POINTER(execution), INTEGER(index), POINTER(type), POINTER(memory), INTEGER(offset), INTEGER(length))
FUNCTION(ANeuralNetworksExecution_enableInputAndOutputPadding,
    (ANeuralNetworksExecution *execution, bool enable),
    POINTER(execution), INTEGER(enable))
FUNCTION(ANeuralNetworksExecution_setReusable,
    (ANeuralNetworksExecution *execution, bool reusable),
    POINTER(execution), INTEGER(reusable))
FUNCTION(ANeuralNetworksExecution_setMeasureTiming,
    (ANeuralNetworksExecution *execution, bool measure),
    POINTER(execution), INTEGER(measure))
FUNCTION(ANeuralNetworksExecution_setTimeout,
    (ANeuralNetworksExecution *execution, uint64_t duration),
    POINTER(execution), INTEGER(duration))
FUNCTION(ANeuralNetworksExecution_setLoopTimeout,
    (ANeuralNetworksExecution *execution, uint64_t duration),
    POINTER(execution), INTEGER(duration))
FUNCTION(ANeuralNetworksExecution_addExtensionAttribute,
    (ANeuralNetworksExecution *execution, const char *extensionName, uint16_t attributeCodeWithinExtension, const void
    *data, size_t length),
    POINTER(execution), POINTER(extensionName), INTEGER(attributeCodeWithinExtension), POINTER(data), INTEGER(length))
FUNCTION(ANeuralNetworksExecution_compute, (ANeuralNetworksExecution *execution), POINTER(execution))
FUNCTION(ANeuralNetworksExecution_burstCompute,
    (ANeuralNetworksExecution *execution, ANeuralNetworksBurst *burst),
    POINTER(execution), POINTER(burst))
FUNCTION(ANeuralNetworksExecution_startCompute,
    (ANeuralNetworksExecution *execution, ANeuralNetworksEvent **event),
    POINTER(execution), MADE(event))
FUNCTION(ANeuralNetworksExecution_startComputeWithDependencies,
    (ANeuralNetworksExecution *execution, const ANeuralNetworksEvent *const *dependencies, uint32_t num_dependencies,
    uint64_t duration, ANeuralNetworksEvent **event),
    POINTER(execution), POINTER(dependencies), INTEGER(num_dependencies), INTEGER(duration), MADE(event))
FUNCTION(ANeuralNetworksExecution_getOutputOperandRank,
    (ANeuralNetworksExecution *execution, int32_t index, uint32_t *rank),
    POINTER(execution), INTEGER(index), POINTER(rank))
FUNCTION(ANeuralNetworksExecution_getOutputOperandDimensions,
    (ANeuralNetworksExecution *execution, int32_t index, uint32_t *dimensions),
    POINTER(execution), INTEGER(index), POINTER(dimensions))
FUNCTION(ANeuralNetworksExecution_getDuration,
    (const ANeuralNetworksExecution *execution, int32_t durationCode, uint64_t *duration),
    POINTER(execution), INTEGER(durationCode), POINTER(duration))
RELEASE(ANeuralNetworksExecution_free, (ANeuralNetworksExecution *execution), POINTER(execution))
FUNCTION(ANeuralNetworksBurst_create,
    (ANeuralNetworksCompilation *compilation, ANeuralNetworksBurst **burst),
    POINTER(compilation), MADE(burst))
RELEASE(ANeuralNetworksBurst_free, (ANeuralNetworksBurst *burst), POINTER(burst))
FUNCTION(ANeuralNetworksEvent_wait, (ANeuralNetworksEvent *event), POINTER(event))
FUNCTION(ANeuralNetworksEvent_createFromSyncFenceFd,
    (int sync_fence_fd, ANeuralNetworksEvent **event),
    INTEGER(sync_fence_fd), MADE(event))
FUNCTION(ANeuralNetworksEvent_getSyncFenceFd,
    (const ANeuralNetworksEvent *event, int *sync_fence_fd),
    POINTER(event), POINTER(sync_fence_fd))
RELEASE(ANeuralNetworksEvent_free, (ANeuralNetworksEvent *event), POINTER(event))
