/* The part of ONNX Runtime's header that examples/ort_host.c uses, for machines that have its library alone. Functions
 * are at their positions in OrtApi; the gaps stand for those that are not used. */
#ifndef ONNXRUNTIME_C_API_H
#define ONNXRUNTIME_C_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtValue OrtValue;
typedef struct OrtEpDevice OrtEpDevice;
typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 } ONNXTensorElementDataType;

typedef struct OrtApi {
    void *unused_0[2];
    const char *(*GetErrorMessage)(const OrtStatus *);
    OrtStatus *(*CreateEnv)(OrtLoggingLevel, const char *id, OrtEnv **);
    void *unused_4[3];
    OrtStatus *(*CreateSession)(const OrtEnv *, const char *path, const OrtSessionOptions *, OrtSession **);
    void *unused_8[1];
    OrtStatus *(*Run)(OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t,
                      const char *const *, size_t, OrtValue **);
    OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **);
    void *unused_11[22];
    OrtStatus *(*SessionGetInputTypeInfo)(const OrtSession *, size_t, OrtTypeInfo **);
    void *unused_34[2];
    OrtStatus *(*SessionGetInputName)(const OrtSession *, size_t, OrtAllocator *, char **);
    OrtStatus *(*SessionGetOutputName)(const OrtSession *, size_t, OrtAllocator *, char **);
    void *unused_38[10];
    OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *, const int64_t *, size_t, ONNXTensorElementDataType, OrtValue **);
    void *unused_49[2];
    OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
    void *unused_52[3];
    OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **);
    void *unused_56[5];
    OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
    OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t);
    void *unused_63[15];
    OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **);
    void *unused_79[222];
    OrtStatus *(*RegisterExecutionProviderLibrary)(OrtEnv *, const char *name, const char *path);
    void *unused_302[1];
    OrtStatus *(*GetEpDevices)(const OrtEnv *, const OrtEpDevice *const **, size_t *);
    OrtStatus *(*SessionOptionsAppendExecutionProvider_V2)(OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t,
                                                           const char *const *, const char *const *, size_t);
    void *unused_305[7];
    const char *(*EpDevice_EpName)(const OrtEpDevice *);
    void *unused_313[5];
    OrtStatus *(*GetTensorSizeInBytes)(const OrtValue *, size_t *);
} OrtApi;

typedef struct OrtApiBase {
    const OrtApi *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase *OrtGetApiBase(void);

#endif
