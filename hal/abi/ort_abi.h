/* The part of ONNX Runtime's C interface that a plug-in execution provider uses.
 *
 * OrtApi, OrtEpApi and OrtModelEditorApi are structures of function pointers, to which releases only append. Here each
 * function that is used has its position, and npu_ort holds those functions with their types. Positions are of released
 * headers. The structures that a provider fills in begin with the version that they are written for. */
#ifndef NPU_ORT_ABI_H
#define NPU_ORT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct OrtStatus OrtStatus;
typedef struct OrtLogger OrtLogger;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtValue OrtValue;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtProfilingEvent OrtProfilingEvent;
typedef struct OrtProfilingEventsContainer OrtProfilingEventsContainer;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtEp OrtEp;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;

typedef struct OrtApiBase {
    const void *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct OrtNodeFusionOptions {
    uint32_t ort_version_supported;
    bool drop_constant_initializers; /* constants are no inputs of the fused node */
} OrtNodeFusionOptions;

enum {
    ORT_FAIL = 1, /* ORT_EP_FAIL would make the Python package run the model on the CPU instead of raising an error */
    ORT_DEVICE_CPU = 0,
    ORT_DEVICE_NPU = 2,
};

#define ORT_STATUS OrtStatus *
/* Table, function, position, result, parameters. */
#define NPU_ORT_FUNCTIONS(X)                                                                                           \
    X(api, CreateStatus, 0, ORT_STATUS, (int code, const char *message))                                               \
    X(api, GetErrorMessage, 2, const char *, (const OrtStatus *status))                                                \
    X(api, GetTensorMutableData, 51, ORT_STATUS, (OrtValue * value, void **data))                                      \
    X(api, CastTypeInfoToTensorInfo, 55, ORT_STATUS, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **))        \
    X(api, GetOnnxTypeFromTypeInfo, 56, ORT_STATUS, (const OrtTypeInfo *, int *kind))                                  \
    X(api, GetTensorElementType, 60, ORT_STATUS, (const OrtTensorTypeAndShapeInfo *, int *element))                    \
    X(api, GetDimensionsCount, 61, ORT_STATUS, (const OrtTensorTypeAndShapeInfo *, size_t *rank))                      \
    X(api, GetDimensions, 62, ORT_STATUS, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t rank))                 \
    X(api, GetSymbolicDimensions, 63, ORT_STATUS, (const OrtTensorTypeAndShapeInfo *, const char **, size_t rank))     \
    X(api, GetTensorTypeAndShape, 65, ORT_STATUS, (const OrtValue *, OrtTensorTypeAndShapeInfo **))                    \
    X(api, KernelContext_GetInputCount, 88, ORT_STATUS, (const OrtKernelContext *, size_t *count))                     \
    X(api, KernelContext_GetOutputCount, 89, ORT_STATUS, (const OrtKernelContext *, size_t *count))                    \
    X(api, KernelContext_GetInput, 90, ORT_STATUS, (const OrtKernelContext *, size_t, const OrtValue **))              \
    X(api, KernelContext_GetOutput, 91, ORT_STATUS,                                                                    \
      (OrtKernelContext *, size_t, const int64_t *shape, size_t rank, OrtValue **))                                    \
    X(api, ReleaseStatus, 93, void, (OrtStatus *))                                                                     \
    X(api, ReleaseValue, 96, void, (OrtValue *))                                                                       \
    X(api, ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo *))                                     \
    X(api, CreateOpAttr, 211, ORT_STATUS, (const char *name, const void *data, int size, int type, OrtOpAttr **))      \
    X(api, ReleaseOpAttr, 212, void, (OrtOpAttr *))                                                                    \
    X(api, Logger_LogMessage, 247, ORT_STATUS,                                                                         \
      (const OrtLogger *, int level, const char *message, const char *file, int line, const char *function))           \
    X(api, ReadOpAttr, 272, ORT_STATUS, (const OrtOpAttr *, int type, void *data, size_t room, size_t *size))          \
    X(api, GetValueInfoName, 289, ORT_STATUS, (const OrtValueInfo *, const char **))                                   \
    X(api, GetValueInfoTypeInfo, 290, ORT_STATUS, (const OrtValueInfo *, const OrtTypeInfo **))                        \
    X(api, GetModelEditorApi, 291, const void *, (void))                                                               \
    X(api, CreateKeyValuePairs, 295, void, (OrtKeyValuePairs **))                                                      \
    X(api, AddKeyValuePair, 296, void, (OrtKeyValuePairs *, const char *key, const char *value))                       \
    X(api, GetKeyValue, 297, const char *, (const OrtKeyValuePairs *, const char *key))                                \
    X(api, GetKeyValuePairs, 298, void,                                                                                \
      (const OrtKeyValuePairs *, const char *const **keys, const char *const **values, size_t *count))                 \
    X(api, ReleaseKeyValuePairs, 300, void, (OrtKeyValuePairs *))                                                      \
    X(api, HardwareDevice_Type, 307, int, (const OrtHardwareDevice *))                                                 \
    X(api, GetEpApi, 317, const void *, (void))                                                                        \
    X(api, GetTensorSizeInBytes, 318, ORT_STATUS, (const OrtValue *, size_t *))                                        \
    X(api, ValueInfo_GetInitializerValue, 326, ORT_STATUS, (const OrtValueInfo *, const OrtValue **))                  \
    X(api, ValueInfo_IsConstantInitializer, 331, ORT_STATUS, (const OrtValueInfo *, bool *))                           \
    X(api, ValueInfo_IsFromOuterScope, 332, ORT_STATUS, (const OrtValueInfo *, bool *))                                \
    X(api, Graph_GetName, 333, ORT_STATUS, (const OrtGraph *, const char **))                                          \
    X(api, Graph_GetModelPath, 334, ORT_STATUS, (const OrtGraph *, const char **))                                     \
    X(api, Graph_GetOnnxIRVersion, 335, ORT_STATUS, (const OrtGraph *, int64_t *))                                     \
    X(api, Graph_GetNumOperatorSets, 336, ORT_STATUS, (const OrtGraph *, size_t *))                                    \
    X(api, Graph_GetOperatorSets, 337, ORT_STATUS, (const OrtGraph *, const char **, int64_t *, size_t))               \
    X(api, Graph_GetNumInputs, 338, ORT_STATUS, (const OrtGraph *, size_t *))                                          \
    X(api, Graph_GetInputs, 339, ORT_STATUS, (const OrtGraph *, const OrtValueInfo **, size_t))                        \
    X(api, Graph_GetNumOutputs, 340, ORT_STATUS, (const OrtGraph *, size_t *))                                         \
    X(api, Graph_GetOutputs, 341, ORT_STATUS, (const OrtGraph *, const OrtValueInfo **, size_t))                       \
    X(api, Graph_GetNumInitializers, 342, ORT_STATUS, (const OrtGraph *, size_t *))                                    \
    X(api, Graph_GetInitializers, 343, ORT_STATUS, (const OrtGraph *, const OrtValueInfo **, size_t))                  \
    X(api, Graph_GetNumNodes, 344, ORT_STATUS, (const OrtGraph *, size_t *))                                           \
    X(api, Graph_GetNodes, 345, ORT_STATUS, (const OrtGraph *, const OrtNode **, size_t))                              \
    X(api, Graph_GetParentNode, 346, ORT_STATUS, (const OrtGraph *, const OrtNode **))                                 \
    X(api, Node_GetName, 349, ORT_STATUS, (const OrtNode *, const char **))                                            \
    X(api, Node_GetOperatorType, 350, ORT_STATUS, (const OrtNode *, const char **))                                    \
    X(api, Node_GetDomain, 351, ORT_STATUS, (const OrtNode *, const char **))                                          \
    X(api, Node_GetNumInputs, 353, ORT_STATUS, (const OrtNode *, size_t *))                                            \
    X(api, Node_GetInputs, 354, ORT_STATUS, (const OrtNode *, const OrtValueInfo **, size_t))                          \
    X(api, Node_GetNumOutputs, 355, ORT_STATUS, (const OrtNode *, size_t *))                                           \
    X(api, Node_GetOutputs, 356, ORT_STATUS, (const OrtNode *, const OrtValueInfo **, size_t))                         \
    X(api, Node_GetNumAttributes, 359, ORT_STATUS, (const OrtNode *, size_t *))                                        \
    X(api, Node_GetAttributes, 360, ORT_STATUS, (const OrtNode *, const OrtOpAttr **, size_t))                         \
    X(api, OpAttr_GetTensorAttributeAsOrtValue, 362, ORT_STATUS, (const OrtOpAttr *, OrtValue **))                     \
    X(api, OpAttr_GetType, 363, ORT_STATUS, (const OrtOpAttr *, int *))                                                \
    X(api, OpAttr_GetName, 364, ORT_STATUS, (const OrtOpAttr *, const char **))                                        \
    X(api, Node_GetNumSubgraphs, 365, ORT_STATUS, (const OrtNode *, size_t *))                                         \
    X(api, Node_GetSubgraphs, 366, ORT_STATUS, (const OrtNode *, const OrtGraph **, size_t, const char **))            \
    X(api, GetTensorData, 378, ORT_STATUS, (const OrtValue *, const void **))                                          \
    X(api, GetSessionOptionsConfigEntries, 379, ORT_STATUS, (const OrtSessionOptions *, OrtKeyValuePairs **))          \
    X(ep, CreateEpDevice, 0, ORT_STATUS,                                                                               \
      (OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *metadata, const OrtKeyValuePairs *options,   \
       OrtEpDevice **))                                                                                                \
    X(ep, ReleaseEpDevice, 1, void, (OrtEpDevice *))                                                                   \
    X(ep, AddNodesToFuse, 2, ORT_STATUS,                                                                               \
      (OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const OrtNodeFusionOptions *))                         \
    X(editor, CreateNode, 6, ORT_STATUS,                                                                               \
      (const char *type, const char *domain, const char *name, const char *const *inputs, size_t,                      \
       const char *const *outputs, size_t, OrtOpAttr **attributes, size_t, OrtNode **))

/* The same for those that appeared after 1.23: they stay NULL before. The second number is the minor version. */
#define NPU_ORT_LATER_FUNCTIONS(X)                                                                                     \
    X(api, TensorTypeAndShape_HasShape, 390, 24, bool, (const OrtTensorTypeAndShapeInfo *))                            \
    X(ep, CreateHardwareDevice, 16, 24, ORT_STATUS,                                                                    \
      (int type, uint32_t vendor_id, uint32_t device_id, const char *vendor, const OrtKeyValuePairs *metadata,         \
       OrtHardwareDevice **))                                                                                          \
    X(ep, ReleaseHardwareDevice, 17, 24, void, (OrtHardwareDevice *))                                                  \
    X(ep, GetEnvConfigEntries, 49, 24, ORT_STATUS, (OrtKeyValuePairs **))                                              \
    X(ep, CreateProfilingEvent, 65, 25, ORT_STATUS,                                                                    \
      (int category, int32_t process, int32_t thread, const char *name, int64_t start_us, int64_t duration_us,         \
       const char *const *keys, const char *const *values, size_t, OrtProfilingEvent **))                              \
    X(ep, ReleaseProfilingEvent, 66, 25, void, (OrtProfilingEvent *))                                                  \
    X(ep, ProfilingEventsContainer_AddEvents, 72, 25, ORT_STATUS,                                                      \
      (OrtProfilingEventsContainer *, const OrtProfilingEvent *const *, size_t))

#define NPU_ORT_MEMBER(table, name, slot, result, parameters) result(*name) parameters;
#define NPU_ORT_LATER_MEMBER(table, name, slot, minor, result, parameters) result(*name) parameters;
typedef struct npu_ort {
    uint32_t version; /* of the interface that this process offers and this code knows */
    NPU_ORT_FUNCTIONS(NPU_ORT_MEMBER)
    NPU_ORT_LATER_FUNCTIONS(NPU_ORT_LATER_MEMBER)
} npu_ort;
#undef NPU_ORT_MEMBER
#undef NPU_ORT_LATER_MEMBER

/* ------------------------------------------------------------------------- structures that a provider fills in */

typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
struct OrtNodeComputeInfo {
    uint32_t ort_version_supported;
    OrtStatus *(*CreateState)(OrtNodeComputeInfo *, OrtNodeComputeContext *, void **state);
    OrtStatus *(*Compute)(OrtNodeComputeInfo *, void *state, OrtKernelContext *);
    void (*ReleaseState)(OrtNodeComputeInfo *, void *state);
};

typedef struct OrtEpProfiler OrtEpProfiler;
struct OrtEpProfiler { /* 1.25 */
    uint32_t ort_version_supported;
    void (*Release)(OrtEpProfiler *);
    OrtStatus *(*StartProfiling)(OrtEpProfiler *, int64_t offset_ns);
    OrtStatus *(*StartEvent)(OrtEpProfiler *, uint64_t id);
    OrtStatus *(*StopEvent)(OrtEpProfiler *, uint64_t id, const OrtProfilingEvent *);
    OrtStatus *(*EndProfiling)(OrtEpProfiler *, OrtProfilingEventsContainer *);
};

/* Functions of which nothing is needed are NULL; the last member stands for all later ones. */
typedef void (*npu_ort_unused)(void);

struct OrtEp {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEp *);
    OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
    OrtStatus *(*Compile)(OrtEp *, const OrtGraph **, const OrtNode **fused, size_t, OrtNodeComputeInfo **, OrtNode **);
    void (*ReleaseNodeComputeInfos)(OrtEp *, OrtNodeComputeInfo **, size_t);
    npu_ort_unused GetPreferredDataLayout, ShouldConvertDataLayoutForOp;
    OrtStatus *(*SetDynamicOptions)(OrtEp *, const char *const *keys, const char *const *values, size_t);
    npu_ort_unused OnRunStart, OnRunEnd, CreateAllocator, CreateSyncStreamForDevice;
    const char *(*GetCompiledModelCompatibilityInfo)(OrtEp *, const OrtGraph *);
    npu_ort_unused GetKernelRegistry;                         /* 1.24 */
    OrtStatus *(*IsConcurrentRunSupported)(OrtEp *, bool *); /* 1.24 */
    npu_ort_unused Sync;                                      /* 1.25 */
    OrtStatus *(*CreateProfiler)(OrtEp *, OrtEpProfiler **); /* 1.25 */
    npu_ort_unused later[32];
};

struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEpFactory *);
    const char *(*GetVendor)(const OrtEpFactory *);
    OrtStatus *(*GetSupportedDevices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **,
                                      size_t room, size_t *made);
    OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *metadata,
                           size_t, const OrtSessionOptions *, const OrtLogger *, OrtEp **);
    void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
    uint32_t (*GetVendorId)(const OrtEpFactory *);
    const char *(*GetVersion)(const OrtEpFactory *);
    OrtStatus *(*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t,
                                                         const char *info, int *verdict);
    OrtStatus *(*CreateAllocator)(OrtEpFactory *, const void *memory, const OrtKeyValuePairs *, void **allocator);
    void (*ReleaseAllocator)(OrtEpFactory *, void *allocator);
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, void **transfer);
    bool (*IsStreamAware)(const OrtEpFactory *);
    npu_ort_unused CreateSyncStreamForDevice;
    npu_ort_unused later[32];
};

#endif
