/* The C interface of npusim's ONNXIFI libraries: types, values and layouts of ONNXIFI 1.0.
 *
 * Two flavours exist, and nothing at run time tells them apart: libonnxifi-npusim.so has tensor descriptors of 96 bytes
 * and the onnxInitGraph of nine arguments; libonnxifi-npusim-v1.so has descriptors of 56 bytes and the one of seven.
 * Define ONNXIFI_NPUSIM_V1 before this header for the second. */
#ifndef ONNXIFI_H
#define ONNXIFI_H 1

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ONNXIFI_ABI
#define ONNXIFI_ABI
#endif
#ifndef ONNXIFI_PUBLIC
#define ONNXIFI_PUBLIC __attribute__((__visibility__("default")))
#endif
#ifndef ONNXIFI_CHECK_RESULT
#define ONNXIFI_CHECK_RESULT __attribute__((__warn_unused_result__))
#endif

/* ------------------------------------------------------------------------------------------------- handles
 * None of them is a pointer to anything; a wrong one gets its INVALID_ status. */

typedef void *onnxBackendID; /* a device, valid until it was released as often as it was given out */
typedef void *onnxBackend;   /* a device in use */
typedef void *onnxGraph;     /* a network, compiled for a device */
typedef void *onnxEvent;     /* something that happens once */

typedef int32_t onnxStatus;
typedef uint64_t onnxEnum;     /* high 32 bits: vendor's */
typedef uint64_t onnxBitfield; /* high 32 bits: vendor's */
typedef uint64_t onnxPointer;  /* an address, or whatever names memory of another type */
typedef int32_t onnxEventState;
typedef int32_t onnxBackendInfo;

/* ------------------------------------------------------------------------------------------------ statuses */

#define ONNXIFI_STATUS_SUCCESS 0x0000
#define ONNXIFI_STATUS_FALLBACK 0x0001 /* a size was asked for, or an operator runs as several others */
#define ONNXIFI_STATUS_INVALID_ID 0x0101
#define ONNXIFI_STATUS_INVALID_SIZE 0x0102
#define ONNXIFI_STATUS_INVALID_POINTER 0x0103
#define ONNXIFI_STATUS_INVALID_PROTOBUF 0x0104
#define ONNXIFI_STATUS_INVALID_MODEL 0x0105
#define ONNXIFI_STATUS_INVALID_BACKEND 0x0106
#define ONNXIFI_STATUS_INVALID_GRAPH 0x0107
#define ONNXIFI_STATUS_INVALID_EVENT 0x0108
#define ONNXIFI_STATUS_INVALID_STATE 0x0109
#define ONNXIFI_STATUS_INVALID_NAME 0x010A
#define ONNXIFI_STATUS_INVALID_SHAPE 0x010B
#define ONNXIFI_STATUS_INVALID_DATATYPE 0x010C
#define ONNXIFI_STATUS_INVALID_MEMORY_TYPE 0x010D
#define ONNXIFI_STATUS_INVALID_MEMORY_LOCATION 0x010E
#define ONNXIFI_STATUS_INVALID_FENCE_TYPE 0x010F
#define ONNXIFI_STATUS_INVALID_PROPERTY 0x0110
#define ONNXIFI_STATUS_UNSUPPORTED_TAG 0x0201
#define ONNXIFI_STATUS_UNSUPPORTED_VERSION 0x0202
#define ONNXIFI_STATUS_UNSUPPORTED_OPERATOR 0x0203
#define ONNXIFI_STATUS_UNSUPPORTED_ATTRIBUTE 0x0204
#define ONNXIFI_STATUS_UNSUPPORTED_SHAPE 0x0205
#define ONNXIFI_STATUS_UNSUPPORTED_DATATYPE 0x0206
#define ONNXIFI_STATUS_UNSUPPORTED_MEMORY_TYPE 0x0207
#define ONNXIFI_STATUS_UNSUPPORTED_FENCE_TYPE 0x0208
#define ONNXIFI_STATUS_UNSUPPORTED_PROPERTY 0x0209
#define ONNXIFI_STATUS_UNIDENTIFIED_NAME 0x0301
#define ONNXIFI_STATUS_MISMATCHING_SHAPE 0x0302
#define ONNXIFI_STATUS_MISMATCHING_DATATYPE 0x0303
#define ONNXIFI_STATUS_NO_SYSTEM_MEMORY 0x0401
#define ONNXIFI_STATUS_NO_DEVICE_MEMORY 0x0402
#define ONNXIFI_STATUS_NO_SYSTEM_RESOURCES 0x0403
#define ONNXIFI_STATUS_NO_DEVICE_RESOURCES 0x0404
#define ONNXIFI_STATUS_BACKEND_UNAVAILABLE 0x0405
#define ONNXIFI_STATUS_INTERNAL_ERROR 0x0406
#define ONNXIFI_STATUS_FATAL_ERROR 0x0407 /* no function of this library returns it */

/* --------------------------------------------------------------------------------------- what can be asked */

#define ONNXIFI_BACKEND_ONNXIFI_VERSION 0        /* uint64_t: major << 32 | minor */
#define ONNXIFI_BACKEND_NAME 1                   /* char[], with its NUL, like every text */
#define ONNXIFI_BACKEND_VENDOR 2                 /* char[] */
#define ONNXIFI_BACKEND_VERSION 3                /* char[] */
#define ONNXIFI_BACKEND_EXTENSIONS 4             /* char[]: names with spaces between them */
#define ONNXIFI_BACKEND_DEVICE 5                 /* char[] */
#define ONNXIFI_BACKEND_DEVICE_TYPE 6            /* onnxEnum */
#define ONNXIFI_BACKEND_ONNX_IR_VERSION 7        /* char[]: "3 4 5" */
#define ONNXIFI_BACKEND_OPSET_VERSION 8          /* char[]: "ai.onnx:17" */
#define ONNXIFI_BACKEND_CAPABILITIES 10          /* onnxBitfield; there is no 9 */
#define ONNXIFI_BACKEND_INIT_PROPERTIES 11       /* onnxBitfield */
#define ONNXIFI_BACKEND_MEMORY_TYPES 12          /* onnxBitfield; 0: memory of the CPU only */
#define ONNXIFI_BACKEND_GRAPH_INIT_PROPERTIES 13 /* onnxBitfield */
#define ONNXIFI_BACKEND_SYNCHRONIZATION_TYPES 14 /* onnxBitfield; 0: events only */
#define ONNXIFI_BACKEND_MEMORY_SIZE 20           /* uint64_t, bytes */
#define ONNXIFI_BACKEND_MAX_GRAPH_SIZE 21        /* uint64_t, bytes of parameters */
#define ONNXIFI_BACKEND_MAX_GRAPH_COUNT 22       /* uint64_t */
#define ONNXIFI_BACKEND_MACS_FP32 30             /* uint64_t, per second; 0: no FP32 */
#define ONNXIFI_BACKEND_MACS_FP16 31             /* uint64_t, per second; 0: no FP16 */
#define ONNXIFI_BACKEND_MEMORY_BANDWIDTH 35      /* uint64_t, bytes per second */
#define ONNXIFI_BACKEND_CPU_MEMORY_READ_BANDWIDTH 36
#define ONNXIFI_BACKEND_CPU_MEMORY_WRITE_BANDWIDTH 37
#define ONNXIFI_BACKEND_PCI_BUS_ID 40
#define ONNXIFI_BACKEND_PCI_DEVICE_ID 41
#define ONNXIFI_BACKEND_PCI_DOMAIN_ID 42
#define ONNXIFI_BACKEND_DIRECTX_ID 43
#define ONNXIFI_BACKEND_CUDA_INDEX 44
#define ONNXIFI_BACKEND_OPENCL_PLATFORM_ID 45
#define ONNXIFI_BACKEND_OPENCL_DEVICE_ID 46

#define ONNXIFI_DEVICE_TYPE_NPU 0x01
#define ONNXIFI_DEVICE_TYPE_DSP 0x02
#define ONNXIFI_DEVICE_TYPE_GPU 0x04
#define ONNXIFI_DEVICE_TYPE_CPU 0x08
#define ONNXIFI_DEVICE_TYPE_FPGA 0x10
#define ONNXIFI_DEVICE_TYPE_HETEROGENEOUS 0x20

#define ONNXIFI_CAPABILITY_THREAD_SAFE 0x01
#define ONNXIFI_CAPABILITY_SYMBOLIC_BATCH_SIZE 0x02
#define ONNXIFI_CAPABILITY_SYMBOLIC_SIZE_TENSORS 0x04
#define ONNXIFI_CAPABILITY_VARIABLE_BATCH_SIZE 0x08
#define ONNXIFI_CAPABILITY_VARIABLE_SIZE_OUTPUTS 0x10
#define ONNXIFI_CAPABILITY_HOT_PLUGGABLE 0x20

/* --------------------------------------------------------------------------------------------- properties
 * A list is pairs of an ID and a value, and ends with the ID 0. */

#define ONNXIFI_BACKEND_PROPERTY_NONE 0
#define ONNXIFI_BACKEND_PROPERTY_OPTIMIZATION 1
#define ONNXIFI_BACKEND_PROPERTY_LOG_LEVEL 2
#define ONNXIFI_BACKEND_CUDA_STREAM 4
#define ONNXIFI_BACKEND_OPENCL_CONTEXT 8
#define ONNXIFI_GRAPH_PROPERTY_NONE 0

#define ONNXIFI_OPTIMIZATION_HIGH_THROUGHPUT 0
#define ONNXIFI_OPTIMIZATION_LOW_LATENCY 1
#define ONNXIFI_OPTIMIZATION_LOW_POWER 2
#define ONNXIFI_OPTIMIZATION_LOW_DELAY 3
#ifndef ONNXIFI_NPUSIM_V1
#define ONNXIFI_OPTIMIZATION_AOT 4
#endif

#define ONNXIFI_LOG_LEVEL_DEBUG 1
#define ONNXIFI_LOG_LEVEL_INFO 2
#define ONNXIFI_LOG_LEVEL_WARNING 3
#define ONNXIFI_LOG_LEVEL_ERROR 4

/* ------------------------------------------------------------------------------------------------- tensors */

#define ONNXIFI_DATATYPE_UNDEFINED 0
#define ONNXIFI_DATATYPE_FLOAT32 1
#define ONNXIFI_DATATYPE_UINT8 2
#define ONNXIFI_DATATYPE_INT8 3
#define ONNXIFI_DATATYPE_UINT16 4
#define ONNXIFI_DATATYPE_INT16 5
#define ONNXIFI_DATATYPE_INT32 6
#define ONNXIFI_DATATYPE_INT64 7
#define ONNXIFI_DATATYPE_FLOAT16 10
#define ONNXIFI_DATATYPE_FLOAT64 11
#define ONNXIFI_DATATYPE_UINT32 12
#define ONNXIFI_DATATYPE_UINT64 13
#define ONNXIFI_DATATYPE_COMPLEX64 14
#define ONNXIFI_DATATYPE_COMPLEX128 15
#define ONNXIFI_DATATYPE_BFLOAT16 16

#define ONNXIFI_MEMORY_TYPE_CPU 0
#define ONNXIFI_MEMORY_TYPE_CUDA_BUFFER 1
#define ONNXIFI_MEMORY_TYPE_OPENCL_BUFFER 2
#define ONNXIFI_MEMORY_TYPE_OPENGLES_TEXTURE_2D 4
#define ONNXIFI_MEMORY_TYPE_D3D_RESOURCE 8

#define ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1 0x43DFBF69

typedef struct onnxTensorDescriptorV1 {
    int32_t tag;           /* ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1 */
    const char *name;      /* of a graph's input, output or weight */
    onnxEnum dataType;
    onnxEnum memoryType;
    uint32_t dimensions;   /* 0: a scalar */
    const uint64_t *shape; /* NULL for a scalar */
#ifndef ONNXIFI_NPUSIM_V1
    uint32_t quantizationAxis;
    uint64_t quantizationParams; /* 0: not quantised, and the three fields around are not read */
    const float *scales;         /* quantizationParams of them */
    const int32_t *biases;       /* quantizationParams of them */
    uint8_t isOffline;           /* a weight without data */
#endif
    onnxPointer buffer; /* the address of the elements, outermost dimension first, without gaps */
} onnxTensorDescriptorV1;

/* -------------------------------------------------------------------------------------- events and fences */

#define ONNXIFI_EVENT_STATE_INVALID 0
#define ONNXIFI_EVENT_STATE_NONSIGNALLED 0x16BD
#define ONNXIFI_EVENT_STATE_SIGNALLED 0x3395

#define ONNXIFI_SYNCHRONIZATION_EVENT 0
#define ONNXIFI_SYNCHRONIZATION_IMPLICIT 2

#define ONNXIFI_TAG_MEMORY_FENCE_V1 0x23E08AAB

typedef struct onnxMemoryFenceV1 {
    int32_t tag;   /* ONNXIFI_TAG_MEMORY_FENCE_V1 */
    onnxEnum type; /* ONNXIFI_SYNCHRONIZATION_EVENT */
    union {
        onnxEvent event;
    };
} onnxMemoryFenceV1;

/* ----------------------------------------------------------------------------------------------- functions
 * The guide to ONNXIFI in npusim's documentation says what each status of each function means. */

/* Devices: call with backendIDs NULL for their number (FALLBACK), then with room for them (SUCCESS). Each ID that was
 * written has to be released. */
#define ONNXIFI_ARGUMENTS_GetBackendIDs (onnxBackendID *backendIDs, size_t *numBackends)
#define ONNXIFI_ARGUMENTS_ReleaseBackendID (onnxBackendID backendID)
/* One value: call with infoValue NULL for its size in bytes (FALLBACK). */
#define ONNXIFI_ARGUMENTS_GetBackendInfo                                                                               \
    (onnxBackendID backendID, onnxBackendInfo infoType, void *infoValue, size_t *infoValueSize)
/* Whether a serialised ModelProto would run: SUCCESS, FALLBACK, or why not. */
#define ONNXIFI_ARGUMENTS_GetBackendCompatibility (onnxBackendID backendID, size_t onnxModelSize, const void *onnxModel)
#define ONNXIFI_ARGUMENTS_InitBackend                                                                                  \
    (onnxBackendID backendID, const uint64_t *auxPropertiesList, onnxBackend *backend)
#define ONNXIFI_ARGUMENTS_ReleaseBackend (onnxBackend backend)
/* Events happen once. onnxWaitEvent gives the status of the run that signalled an output event. */
#define ONNXIFI_ARGUMENTS_InitEvent (onnxBackend backend, onnxEvent *event)
#define ONNXIFI_ARGUMENTS_SignalEvent (onnxEvent event)
#define ONNXIFI_ARGUMENTS_GetEventState (onnxEvent event, onnxEventState *state)
#define ONNXIFI_ARGUMENTS_WaitEvent (onnxEvent event)
#define ONNXIFI_ARGUMENTS_ReleaseEvent (onnxEvent event)
/* Compiles a model, whose bytes and weights are copied. Weights are initialisers of the model or descriptors, not both.
 * maxSeqLength and deferredWeightReader are not used. */
#ifndef ONNXIFI_NPUSIM_V1
#define ONNXIFI_ARGUMENTS_InitGraph                                                                                    \
    (onnxBackend backend, const uint64_t *auxPropertiesList, size_t onnxModelSize, const void *onnxModel,              \
     uint32_t weightsCount, const onnxTensorDescriptorV1 *weightDescriptors, onnxGraph *graph, uint32_t maxSeqLength,  \
     void *deferredWeightReader)
#else
#define ONNXIFI_ARGUMENTS_InitGraph                                                                                    \
    (onnxBackend backend, const uint64_t *auxPropertiesList, size_t onnxModelSize, const void *onnxModel,              \
     uint32_t weightsCount, const onnxTensorDescriptorV1 *weightDescriptors, onnxGraph *graph)
#endif
/* Where the next runs read and write. Runs that were started before keep the buffers that they were started with. */
#define ONNXIFI_ARGUMENTS_SetGraphIO                                                                                   \
    (onnxGraph graph, uint32_t inputsCount, const onnxTensorDescriptorV1 *inputDescriptors, uint32_t outputsCount,     \
     const onnxTensorDescriptorV1 *outputDescriptors)
/* Starts a run when the event of inputFence is signalled, and stores a new event, its end, in outputFence. */
#define ONNXIFI_ARGUMENTS_RunGraph                                                                                     \
    (onnxGraph graph, const onnxMemoryFenceV1 *inputFence, onnxMemoryFenceV1 *outputFence)
/* Returns when the last run of the graph has ended. */
#define ONNXIFI_ARGUMENTS_ReleaseGraph (onnxGraph graph)

#define ONNXIFI_FUNCTIONS(X)                                                                                           \
    X(GetBackendIDs)                                                                                                   \
    X(ReleaseBackendID)                                                                                                \
    X(GetBackendInfo)                                                                                                  \
    X(GetBackendCompatibility)                                                                                         \
    X(InitBackend)                                                                                                     \
    X(ReleaseBackend)                                                                                                  \
    X(InitEvent)                                                                                                       \
    X(SignalEvent)                                                                                                     \
    X(GetEventState)                                                                                                   \
    X(WaitEvent)                                                                                                       \
    X(ReleaseEvent)                                                                                                    \
    X(InitGraph)                                                                                                       \
    X(SetGraphIO)                                                                                                      \
    X(RunGraph)                                                                                                        \
    X(ReleaseGraph)

/* onnxGetBackendIDs and so on, and the types of pointers to them, onnxGetBackendIDsFunction and so on. */
#define ONNXIFI_DECLARE(name)                                                                                          \
    typedef onnxStatus(ONNXIFI_ABI *onnx##name##Function) ONNXIFI_ARGUMENTS_##name;                                    \
    ONNXIFI_PUBLIC onnxStatus ONNXIFI_ABI onnx##name ONNXIFI_ARGUMENTS_##name;
ONNXIFI_FUNCTIONS(ONNXIFI_DECLARE)
#undef ONNXIFI_DECLARE

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
