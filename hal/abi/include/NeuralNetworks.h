/* The NNAPI C API, feature levels 1 to 8, as libneuralnetworks.so of npusim offers it.
 *
 * Names, values and layouts are those of Android's interface, so that a client compiled against its header runs with
 * this library and the other way round. The descriptions are npusim's own and say what this implementation does;
 * docs/guide/nnapi-c-api.md has an example and everything about devices, caching and errors.
 *
 * Every handle may be NULL, stale or wrong without harm: functions that need it return UNEXPECTED_NULL for NULL and
 * BAD_DATA for a handle that does not exist (any more). Buffers are the client's business, as always in C. */
#ifndef NPUSIM_NEURAL_NETWORKS_H
#define NPUSIM_NEURAL_NETWORKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------- constants */

/* What a function returns. */
typedef enum {
    ANEURALNETWORKS_NO_ERROR = 0,
    ANEURALNETWORKS_OUT_OF_MEMORY = 1,               /* of the host */
    ANEURALNETWORKS_INCOMPLETE = 2,                  /* not used by this library */
    ANEURALNETWORKS_UNEXPECTED_NULL = 3,             /* a pointer that must be there is NULL */
    ANEURALNETWORKS_BAD_DATA = 4,                    /* an argument, a model or a handle breaks a rule */
    ANEURALNETWORKS_OP_FAILED = 5,                   /* the driver has failed */
    ANEURALNETWORKS_BAD_STATE = 6,                   /* the call comes too early or too late */
    ANEURALNETWORKS_UNMAPPABLE = 7,                  /* memory that cannot be mapped */
    ANEURALNETWORKS_OUTPUT_INSUFFICIENT_SIZE = 8,    /* an output did not fit its buffer */
    ANEURALNETWORKS_UNAVAILABLE_DEVICE = 9,          /* unplugged, its queue full, or no Python to simulate it */
    ANEURALNETWORKS_MISSED_DEADLINE_TRANSIENT = 10,  /* may be met another time */
    ANEURALNETWORKS_MISSED_DEADLINE_PERSISTENT = 11, /* cannot be met */
    ANEURALNETWORKS_RESOURCE_EXHAUSTED_TRANSIENT = 12,
    ANEURALNETWORKS_RESOURCE_EXHAUSTED_PERSISTENT = 13,
    ANEURALNETWORKS_DEAD_OBJECT = 14, /* the runtime is gone: a forked child, the end of the process */
} ResultCode;

/* Types of operands. */
typedef enum {
    ANEURALNETWORKS_FLOAT32 = 0,
    ANEURALNETWORKS_INT32 = 1,
    ANEURALNETWORKS_UINT32 = 2,
    ANEURALNETWORKS_TENSOR_FLOAT32 = 3,
    ANEURALNETWORKS_TENSOR_INT32 = 4,
    ANEURALNETWORKS_TENSOR_QUANT8_ASYMM = 5,
    ANEURALNETWORKS_BOOL = 6,
    ANEURALNETWORKS_TENSOR_QUANT16_SYMM = 7,
    ANEURALNETWORKS_TENSOR_FLOAT16 = 8,
    ANEURALNETWORKS_TENSOR_BOOL8 = 9,
    ANEURALNETWORKS_FLOAT16 = 10,
    ANEURALNETWORKS_TENSOR_QUANT8_SYMM_PER_CHANNEL = 11,
    ANEURALNETWORKS_TENSOR_QUANT16_ASYMM = 12,
    ANEURALNETWORKS_TENSOR_QUANT8_SYMM = 13,
    ANEURALNETWORKS_TENSOR_QUANT8_ASYMM_SIGNED = 14,
    ANEURALNETWORKS_MODEL = 15,
    ANEURALNETWORKS_OEM_SCALAR = 10000,
    ANEURALNETWORKS_TENSOR_OEM_BYTE = 10001,
} OperandCode;

/* Types of operations. */
typedef enum {
    ANEURALNETWORKS_ADD = 0,
    ANEURALNETWORKS_AVERAGE_POOL_2D = 1,
    ANEURALNETWORKS_CONCATENATION = 2,
    ANEURALNETWORKS_CONV_2D = 3,
    ANEURALNETWORKS_DEPTHWISE_CONV_2D = 4,
    ANEURALNETWORKS_DEPTH_TO_SPACE = 5,
    ANEURALNETWORKS_DEQUANTIZE = 6,
    ANEURALNETWORKS_EMBEDDING_LOOKUP = 7,
    ANEURALNETWORKS_FLOOR = 8,
    ANEURALNETWORKS_FULLY_CONNECTED = 9,
    ANEURALNETWORKS_HASHTABLE_LOOKUP = 10,
    ANEURALNETWORKS_L2_NORMALIZATION = 11,
    ANEURALNETWORKS_L2_POOL_2D = 12,
    ANEURALNETWORKS_LOCAL_RESPONSE_NORMALIZATION = 13,
    ANEURALNETWORKS_LOGISTIC = 14,
    ANEURALNETWORKS_LSH_PROJECTION = 15,
    ANEURALNETWORKS_LSTM = 16,
    ANEURALNETWORKS_MAX_POOL_2D = 17,
    ANEURALNETWORKS_MUL = 18,
    ANEURALNETWORKS_RELU = 19,
    ANEURALNETWORKS_RELU1 = 20,
    ANEURALNETWORKS_RELU6 = 21,
    ANEURALNETWORKS_RESHAPE = 22,
    ANEURALNETWORKS_RESIZE_BILINEAR = 23,
    ANEURALNETWORKS_RNN = 24,
    ANEURALNETWORKS_SOFTMAX = 25,
    ANEURALNETWORKS_SPACE_TO_DEPTH = 26,
    ANEURALNETWORKS_SVDF = 27,
    ANEURALNETWORKS_TANH = 28,
    ANEURALNETWORKS_BATCH_TO_SPACE_ND = 29,
    ANEURALNETWORKS_DIV = 30,
    ANEURALNETWORKS_MEAN = 31,
    ANEURALNETWORKS_PAD = 32,
    ANEURALNETWORKS_SPACE_TO_BATCH_ND = 33,
    ANEURALNETWORKS_SQUEEZE = 34,
    ANEURALNETWORKS_STRIDED_SLICE = 35,
    ANEURALNETWORKS_SUB = 36,
    ANEURALNETWORKS_TRANSPOSE = 37,
    ANEURALNETWORKS_ABS = 38,
    ANEURALNETWORKS_ARGMAX = 39,
    ANEURALNETWORKS_ARGMIN = 40,
    ANEURALNETWORKS_AXIS_ALIGNED_BBOX_TRANSFORM = 41,
    ANEURALNETWORKS_BIDIRECTIONAL_SEQUENCE_LSTM = 42,
    ANEURALNETWORKS_BIDIRECTIONAL_SEQUENCE_RNN = 43,
    ANEURALNETWORKS_BOX_WITH_NMS_LIMIT = 44,
    ANEURALNETWORKS_CAST = 45,
    ANEURALNETWORKS_CHANNEL_SHUFFLE = 46,
    ANEURALNETWORKS_DETECTION_POSTPROCESSING = 47,
    ANEURALNETWORKS_EQUAL = 48,
    ANEURALNETWORKS_EXP = 49,
    ANEURALNETWORKS_EXPAND_DIMS = 50,
    ANEURALNETWORKS_GATHER = 51,
    ANEURALNETWORKS_GENERATE_PROPOSALS = 52,
    ANEURALNETWORKS_GREATER = 53,
    ANEURALNETWORKS_GREATER_EQUAL = 54,
    ANEURALNETWORKS_GROUPED_CONV_2D = 55,
    ANEURALNETWORKS_HEATMAP_MAX_KEYPOINT = 56,
    ANEURALNETWORKS_INSTANCE_NORMALIZATION = 57,
    ANEURALNETWORKS_LESS = 58,
    ANEURALNETWORKS_LESS_EQUAL = 59,
    ANEURALNETWORKS_LOG = 60,
    ANEURALNETWORKS_LOGICAL_AND = 61,
    ANEURALNETWORKS_LOGICAL_NOT = 62,
    ANEURALNETWORKS_LOGICAL_OR = 63,
    ANEURALNETWORKS_LOG_SOFTMAX = 64,
    ANEURALNETWORKS_MAXIMUM = 65,
    ANEURALNETWORKS_MINIMUM = 66,
    ANEURALNETWORKS_NEG = 67,
    ANEURALNETWORKS_NOT_EQUAL = 68,
    ANEURALNETWORKS_PAD_V2 = 69,
    ANEURALNETWORKS_POW = 70,
    ANEURALNETWORKS_PRELU = 71,
    ANEURALNETWORKS_QUANTIZE = 72,
    ANEURALNETWORKS_QUANTIZED_16BIT_LSTM = 73,
    ANEURALNETWORKS_RANDOM_MULTINOMIAL = 74,
    ANEURALNETWORKS_REDUCE_ALL = 75,
    ANEURALNETWORKS_REDUCE_ANY = 76,
    ANEURALNETWORKS_REDUCE_MAX = 77,
    ANEURALNETWORKS_REDUCE_MIN = 78,
    ANEURALNETWORKS_REDUCE_PROD = 79,
    ANEURALNETWORKS_REDUCE_SUM = 80,
    ANEURALNETWORKS_ROI_ALIGN = 81,
    ANEURALNETWORKS_ROI_POOLING = 82,
    ANEURALNETWORKS_RSQRT = 83,
    ANEURALNETWORKS_SELECT = 84,
    ANEURALNETWORKS_SIN = 85,
    ANEURALNETWORKS_SLICE = 86,
    ANEURALNETWORKS_SPLIT = 87,
    ANEURALNETWORKS_SQRT = 88,
    ANEURALNETWORKS_TILE = 89,
    ANEURALNETWORKS_TOPK_V2 = 90,
    ANEURALNETWORKS_TRANSPOSE_CONV_2D = 91,
    ANEURALNETWORKS_UNIDIRECTIONAL_SEQUENCE_LSTM = 92,
    ANEURALNETWORKS_UNIDIRECTIONAL_SEQUENCE_RNN = 93,
    ANEURALNETWORKS_RESIZE_NEAREST_NEIGHBOR = 94,
    ANEURALNETWORKS_QUANTIZED_LSTM = 95,
    ANEURALNETWORKS_IF = 96,
    ANEURALNETWORKS_WHILE = 97,
    ANEURALNETWORKS_ELU = 98,
    ANEURALNETWORKS_HARD_SWISH = 99,
    ANEURALNETWORKS_FILL = 100,
    ANEURALNETWORKS_RANK = 101,
    ANEURALNETWORKS_BATCH_MATMUL = 102,
    ANEURALNETWORKS_PACK = 103,
    ANEURALNETWORKS_MIRROR_PAD = 104,
    ANEURALNETWORKS_REVERSE = 105,
    ANEURALNETWORKS_OEM_OPERATION = 10000,
} OperationCode;

/* An activation that an operation applies to its result. */
typedef enum {
    ANEURALNETWORKS_FUSED_NONE = 0,
    ANEURALNETWORKS_FUSED_RELU = 1,
    ANEURALNETWORKS_FUSED_RELU1 = 2,
    ANEURALNETWORKS_FUSED_RELU6 = 3,
} FuseCode;

/* Implicit padding of convolutions and pools. */
typedef enum {
    ANEURALNETWORKS_PADDING_SAME = 1,
    ANEURALNETWORKS_PADDING_VALID = 2,
} PaddingCode;

/* What a client wants most. */
typedef enum {
    ANEURALNETWORKS_PREFER_LOW_POWER = 0,
    ANEURALNETWORKS_PREFER_FAST_SINGLE_ANSWER = 1,
    ANEURALNETWORKS_PREFER_SUSTAINED_SPEED = 2,
} PreferenceCode;

typedef enum {
    ANEURALNETWORKS_DEVICE_UNKNOWN = 0,
    ANEURALNETWORKS_DEVICE_OTHER = 1,
    ANEURALNETWORKS_DEVICE_CPU = 2,
    ANEURALNETWORKS_DEVICE_GPU = 3,
    ANEURALNETWORKS_DEVICE_ACCELERATOR = 4,
} DeviceTypeCode;

/* Which time is asked for. All times are simulated; only waiting for fences is the machine's own. */
typedef enum {
    ANEURALNETWORKS_DURATION_ON_HARDWARE = 0,
    ANEURALNETWORKS_DURATION_IN_DRIVER = 1,        /* from the launch on */
    ANEURALNETWORKS_FENCED_DURATION_ON_HARDWARE = 2,
    ANEURALNETWORKS_FENCED_DURATION_IN_DRIVER = 3, /* from when the last dependency was signalled */
} DurationCode;

typedef enum {
    ANEURALNETWORKS_PRIORITY_LOW = 90,
    ANEURALNETWORKS_PRIORITY_MEDIUM = 100,
    ANEURALNETWORKS_PRIORITY_HIGH = 110,
    ANEURALNETWORKS_PRIORITY_DEFAULT = ANEURALNETWORKS_PRIORITY_MEDIUM,
} PriorityCode;

typedef enum {
    ANEURALNETWORKS_FEATURE_LEVEL_1 = 27,
    ANEURALNETWORKS_FEATURE_LEVEL_2 = 28,
    ANEURALNETWORKS_FEATURE_LEVEL_3 = 29,
    ANEURALNETWORKS_FEATURE_LEVEL_4 = 30,
    ANEURALNETWORKS_FEATURE_LEVEL_5 = 31,
    ANEURALNETWORKS_FEATURE_LEVEL_6 = 1000006,
    ANEURALNETWORKS_FEATURE_LEVEL_7 = 1000007,
    ANEURALNETWORKS_FEATURE_LEVEL_8 = 1000008,
} FeatureLevelCode;

enum {
    ANEURALNETWORKS_BYTE_SIZE_OF_CACHE_TOKEN = 32,
    ANEURALNETWORKS_MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES = 128, /* bytes; more stay where they are until finish */
};

/* ----------------------------------------------------------------------------------------------------------- types */

typedef struct ANeuralNetworksMemory ANeuralNetworksMemory;
typedef struct ANeuralNetworksMemoryDesc ANeuralNetworksMemoryDesc;
typedef struct ANeuralNetworksModel ANeuralNetworksModel;
typedef struct ANeuralNetworksCompilation ANeuralNetworksCompilation;
typedef struct ANeuralNetworksExecution ANeuralNetworksExecution;
typedef struct ANeuralNetworksBurst ANeuralNetworksBurst;
typedef struct ANeuralNetworksEvent ANeuralNetworksEvent;
typedef struct ANeuralNetworksDevice ANeuralNetworksDevice;
typedef struct AHardwareBuffer AHardwareBuffer;

typedef int32_t ANeuralNetworksOperationType;

/* An operand: a tensor has dimensions (0: not known; none: not even their number), a scalar has none. scale and
 * zeroPoint are 0 for types that are not quantised. */
typedef struct ANeuralNetworksOperandType {
    int32_t type; /* an OperandCode, or a type of an extension */
    uint32_t dimensionCount;
    const uint32_t *dimensions;
    float scale;
    int32_t zeroPoint;
} ANeuralNetworksOperandType;

/* A scale for each index of one dimension. */
typedef struct ANeuralNetworksSymmPerChannelQuantParams {
    uint32_t channelDim;
    uint32_t scaleCount;
    const float *scales;
} ANeuralNetworksSymmPerChannelQuantParams;

/* -------------------------------------------------------------------------------------- the runtime and its devices */

/* ANEURALNETWORKS_FEATURE_LEVEL_8. */
int64_t ANeuralNetworks_getRuntimeFeatureLevel(void);
/* Nanoseconds of simulated time that a WHILE may take. */
uint64_t ANeuralNetworks_getDefaultLoopTimeout(void);
uint64_t ANeuralNetworks_getMaximumLoopTimeout(void);

/* The devices named by NPUSIM_NNAPI_DEVICES (names or paths of configs, by commas; "edge" if it is not set). None if
 * no Python can be found to simulate them. */
int ANeuralNetworks_getDeviceCount(uint32_t *numDevices);
/* Device number devIndex, the same handle every time. */
int ANeuralNetworks_getDevice(uint32_t devIndex, ANeuralNetworksDevice **device);
/* Strings stay valid as long as the process lives. */
int ANeuralNetworksDevice_getName(const ANeuralNetworksDevice *device, const char **name);
int ANeuralNetworksDevice_getVersion(const ANeuralNetworksDevice *device, const char **version);
int ANeuralNetworksDevice_getType(const ANeuralNetworksDevice *device, int32_t *type);
int ANeuralNetworksDevice_getFeatureLevel(const ANeuralNetworksDevice *device, int64_t *featureLevel);
/* Returns when the device is there; DEAD_OBJECT if it stays unplugged for a second. */
int ANeuralNetworksDevice_wait(const ANeuralNetworksDevice *device);
int ANeuralNetworksDevice_getExtensionSupport(const ANeuralNetworksDevice *device, const char *extensionName,
                                              bool *isExtensionSupported);

/* ----------------------------------------------------------------------------------------------------------- memory */

/* size bytes of a file from offset on, with PROT_READ, PROT_WRITE or both. The descriptor is duplicated. */
int ANeuralNetworksMemory_createFromFd(size_t size, int protect, int fd, size_t offset, ANeuralNetworksMemory **memory);
/* Always UNMAPPABLE: there are no such buffers here. */
int ANeuralNetworksMemory_createFromAHardwareBuffer(const AHardwareBuffer *ahwb, ANeuralNetworksMemory **memory);
/* Memory of a device, for the roles that a finished descriptor names. It has contents after it was the output of a
 * successful execution or the destination of a successful copy, and none any more after a failed one. */
int ANeuralNetworksMemory_createFromDesc(const ANeuralNetworksMemoryDesc *desc, ANeuralNetworksMemory **memory);
/* Copies everything; both must have the same number of bytes. */
int ANeuralNetworksMemory_copy(const ANeuralNetworksMemory *src, const ANeuralNetworksMemory *dst);
/* NULL is allowed, here and in all functions that free. */
void ANeuralNetworksMemory_free(ANeuralNetworksMemory *memory);
int ANeuralNetworksMemoryDesc_create(ANeuralNetworksMemoryDesc **desc);
/* The memory is going to be input or output number index of a finished compilation; 0 < frequency <= 1. */
int ANeuralNetworksMemoryDesc_addInputRole(ANeuralNetworksMemoryDesc *desc,
                                           const ANeuralNetworksCompilation *compilation, uint32_t index,
                                           float frequency);
int ANeuralNetworksMemoryDesc_addOutputRole(ANeuralNetworksMemoryDesc *desc,
                                            const ANeuralNetworksCompilation *compilation, uint32_t index,
                                            float frequency);
int ANeuralNetworksMemoryDesc_setDimensions(ANeuralNetworksMemoryDesc *desc, uint32_t rank, const uint32_t *dimensions);
int ANeuralNetworksMemoryDesc_finish(ANeuralNetworksMemoryDesc *desc);
void ANeuralNetworksMemoryDesc_free(ANeuralNetworksMemoryDesc *desc);

/* ----------------------------------------------------------------------------------------------------------- models */

int ANeuralNetworksModel_create(ANeuralNetworksModel **model);
/* Operands are numbered from 0 in the order in which they are added. */
int ANeuralNetworksModel_addOperand(ANeuralNetworksModel *model, const ANeuralNetworksOperandType *type);
/* A constant. Up to 128 bytes are copied at once, more at finish: until then the buffer must stay. NULL and 0 say that an
 * optional operand is not there. */
int ANeuralNetworksModel_setOperandValue(ANeuralNetworksModel *model, int32_t index, const void *buffer, size_t length);
/* A constant that stays in a memory object, which must not change as long as the model is used. */
int ANeuralNetworksModel_setOperandValueFromMemory(ANeuralNetworksModel *model, int32_t index,
                                                   const ANeuralNetworksMemory *memory, size_t offset, size_t length);
/* A finished model as the value of an operand of type ANEURALNETWORKS_MODEL, for IF and WHILE. */
int ANeuralNetworksModel_setOperandValueFromModel(ANeuralNetworksModel *model, int32_t index,
                                                  const ANeuralNetworksModel *value);
int ANeuralNetworksModel_setOperandSymmPerChannelQuantParams(
    ANeuralNetworksModel *model, int32_t index, const ANeuralNetworksSymmPerChannelQuantParams *channelQuant);
/* The order of adding is free. */
int ANeuralNetworksModel_addOperation(ANeuralNetworksModel *model, ANeuralNetworksOperationType type,
                                      uint32_t inputCount, const uint32_t *inputs, uint32_t outputCount,
                                      const uint32_t *outputs);
int ANeuralNetworksModel_identifyInputsAndOutputs(ANeuralNetworksModel *model, uint32_t inputCount,
                                                  const uint32_t *inputs, uint32_t outputCount,
                                                  const uint32_t *outputs);
int ANeuralNetworksModel_relaxComputationFloat32toFloat16(ANeuralNetworksModel *model, bool allow);
/* Checks every rule. Nothing can be changed afterwards. */
int ANeuralNetworksModel_finish(ANeuralNetworksModel *model);
/* What was made from the model goes on working; so it is with compilations and memories. */
void ANeuralNetworksModel_free(ANeuralNetworksModel *model);
/* supportedOps[i]: whether one of the devices can execute the operation that was added as number i. */
int ANeuralNetworksModel_getSupportedOperationsForDevices(const ANeuralNetworksModel *model,
                                                          const ANeuralNetworksDevice *const *devices,
                                                          uint32_t numDevices, bool *supportedOps);
int ANeuralNetworksModel_getExtensionOperandType(ANeuralNetworksModel *model, const char *extensionName,
                                                 uint16_t operandCodeWithinExtension, int32_t *type);
int ANeuralNetworksModel_getExtensionOperationType(ANeuralNetworksModel *model, const char *extensionName,
                                                   uint16_t operationCodeWithinExtension,
                                                   ANeuralNetworksOperationType *type);
/* Bytes for an operand of an extension's type; they are copied. NULL and 0 take them away. */
int ANeuralNetworksModel_setOperandExtensionData(ANeuralNetworksModel *model, int32_t index, const void *data,
                                                 size_t length);

/* ----------------------------------------------------------------------------------------------------- compilations */

/* For all devices: a model that one of them supports as a whole goes to the best of these, any other is cut into runs of
 * operations. There is no CPU to fall back to: BAD_DATA at finish if some operation is supported by no device. */
int ANeuralNetworksCompilation_create(ANeuralNetworksModel *model, ANeuralNetworksCompilation **compilation);
int ANeuralNetworksCompilation_createForDevices(ANeuralNetworksModel *model,
                                                const ANeuralNetworksDevice *const *devices, uint32_t numDevices,
                                                ANeuralNetworksCompilation **compilation);
int ANeuralNetworksCompilation_setPreference(ANeuralNetworksCompilation *compilation, int32_t preference);
int ANeuralNetworksCompilation_setPriority(ANeuralNetworksCompilation *compilation, int priority);
/* Nanoseconds for finish, 0 without a limit; needs createForDevices with one device. */
int ANeuralNetworksCompilation_setTimeout(ANeuralNetworksCompilation *compilation, uint64_t duration);
/* Keeps the compiled model in files of cacheDir, and takes it from there. The token (32 bytes) stands for the model. */
int ANeuralNetworksCompilation_setCaching(ANeuralNetworksCompilation *compilation, const char *cacheDir,
                                          const uint8_t *token);
int ANeuralNetworksCompilation_finish(ANeuralNetworksCompilation *compilation);
void ANeuralNetworksCompilation_free(ANeuralNetworksCompilation *compilation);
/* Bytes, a power of two. A preference, no more. */
int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForInput(const ANeuralNetworksCompilation *compilation,
                                                                   uint32_t index, uint32_t *alignment);
int ANeuralNetworksCompilation_getPreferredMemoryPaddingForInput(const ANeuralNetworksCompilation *compilation,
                                                                 uint32_t index, uint32_t *padding);
int ANeuralNetworksCompilation_getPreferredMemoryAlignmentForOutput(const ANeuralNetworksCompilation *compilation,
                                                                    uint32_t index, uint32_t *alignment);
int ANeuralNetworksCompilation_getPreferredMemoryPaddingForOutput(const ANeuralNetworksCompilation *compilation,
                                                                  uint32_t index, uint32_t *padding);
/* A hint for the driver; needs createForDevices with one device. */
int ANeuralNetworksCompilation_addExtensionAttribute(ANeuralNetworksCompilation *compilation, const char *extensionName,
                                                     uint16_t attributeCodeWithinExtension, const void *data,
                                                     size_t length);

/* ------------------------------------------------------------------------------------------------------- executions */

int ANeuralNetworksExecution_create(ANeuralNetworksCompilation *compilation, ANeuralNetworksExecution **execution);
/* Arguments. type may be NULL, or give dimensions that the model leaves open. The buffer must stay until the execution is
 * completed. NULL and 0 leave an optional argument out. */
int ANeuralNetworksExecution_setInput(ANeuralNetworksExecution *execution, int32_t index,
                                      const ANeuralNetworksOperandType *type, const void *buffer, size_t length);
/* offset and length are 0 for memory made from a descriptor. */
int ANeuralNetworksExecution_setInputFromMemory(ANeuralNetworksExecution *execution, int32_t index,
                                                const ANeuralNetworksOperandType *type,
                                                const ANeuralNetworksMemory *memory, size_t offset, size_t length);
int ANeuralNetworksExecution_setOutput(ANeuralNetworksExecution *execution, int32_t index,
                                       const ANeuralNetworksOperandType *type, void *buffer, size_t length);
int ANeuralNetworksExecution_setOutputFromMemory(ANeuralNetworksExecution *execution, int32_t index,
                                                 const ANeuralNetworksOperandType *type,
                                                 const ANeuralNetworksMemory *memory, size_t offset, size_t length);
/* Lets buffers be longer than their data; comes before the first argument. */
int ANeuralNetworksExecution_enableInputAndOutputPadding(ANeuralNetworksExecution *execution, bool enable);
/* Lets it be computed again and again with the same arguments. */
int ANeuralNetworksExecution_setReusable(ANeuralNetworksExecution *execution, bool reusable);
/* These two need createForDevices with one device. Durations in nanoseconds, 0 without a limit. */
int ANeuralNetworksExecution_setMeasureTiming(ANeuralNetworksExecution *execution, bool measure);
int ANeuralNetworksExecution_setTimeout(ANeuralNetworksExecution *execution, uint64_t duration);
/* Simulated nanoseconds for a WHILE, at most what getMaximumLoopTimeout says. */
int ANeuralNetworksExecution_setLoopTimeout(ANeuralNetworksExecution *execution, uint64_t duration);
int ANeuralNetworksExecution_addExtensionAttribute(ANeuralNetworksExecution *execution, const char *extensionName,
                                                   uint16_t attributeCodeWithinExtension, const void *data,
                                                   size_t length);
/* Returns when it is done. */
int ANeuralNetworksExecution_compute(ANeuralNetworksExecution *execution);
/* The same; the burst keeps memory mapped and the program resident. BAD_STATE while it computes another one. */
int ANeuralNetworksExecution_burstCompute(ANeuralNetworksExecution *execution, ANeuralNetworksBurst *burst);
/* Returns at once; the event tells the end. */
int ANeuralNetworksExecution_startCompute(ANeuralNetworksExecution *execution, ANeuralNetworksEvent **event);
/* Begins when all dependencies are signalled. The event has a sync fence. Outputs must be fully specified. duration counts
 * from the last dependency on; other than 0 it needs createForDevices with one device. */
int ANeuralNetworksExecution_startComputeWithDependencies(ANeuralNetworksExecution *execution,
                                                          const ANeuralNetworksEvent *const *dependencies,
                                                          uint32_t num_dependencies, uint64_t duration,
                                                          ANeuralNetworksEvent **event);
/* Of a completed execution; OUTPUT_INSUFFICIENT_SIZE, with the result, for the output that had too little room. */
int ANeuralNetworksExecution_getOutputOperandRank(ANeuralNetworksExecution *execution, int32_t index, uint32_t *rank);
int ANeuralNetworksExecution_getOutputOperandDimensions(ANeuralNetworksExecution *execution, int32_t index,
                                                        uint32_t *dimensions);
/* Nanoseconds, UINT64_MAX if there is no such time; BAD_STATE if it was not to be measured. */
int ANeuralNetworksExecution_getDuration(const ANeuralNetworksExecution *execution, int32_t durationCode,
                                         uint64_t *duration);
void ANeuralNetworksExecution_free(ANeuralNetworksExecution *execution);

/* ------------------------------------------------------------------------------------------------ bursts and events */

int ANeuralNetworksBurst_create(ANeuralNetworksCompilation *compilation, ANeuralNetworksBurst **burst);
void ANeuralNetworksBurst_free(ANeuralNetworksBurst *burst);
/* Returns when it has happened, with the result code of its execution. Any number of threads may wait. */
int ANeuralNetworksEvent_wait(ANeuralNetworksEvent *event);
/* An event of a foreign fence: an eventfd, or the readable end of a pipe or socket. The descriptor is duplicated. */
int ANeuralNetworksEvent_createFromSyncFenceFd(int sync_fence_fd, ANeuralNetworksEvent **event);
/* A new descriptor, which the client closes; -1 and BAD_DATA for an event without a fence. */
int ANeuralNetworksEvent_getSyncFenceFd(const ANeuralNetworksEvent *event, int *sync_fence_fd);
/* Waits until its execution no longer uses the client's memory. */
void ANeuralNetworksEvent_free(ANeuralNetworksEvent *event);

#ifdef __cplusplus
}
#endif

#endif
