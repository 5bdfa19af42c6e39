/* Runs an ONNX model through ONNX Runtime on the simulated device: its first input is all ones, its first output is
 * printed. Build: cc ort_host.c -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime
 * Run: ./a.out libnpusim-ort.so model.onnx, with the path of the plug-in that `npusim libs` shows. */
#include <onnxruntime_c_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi *ort;

static void check(OrtStatus *status) {
    if (status) {
        fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtAllocator *allocator;
    OrtTypeInfo *type;
    const OrtTensorTypeAndShapeInfo *tensor;
    OrtValue *x, *y = NULL;
    const OrtEpDevice *const *devices;
    size_t count, chosen = 0, bytes, rank;
    int64_t shape[8];
    float *data;
    char *in, *out;
    if (argc != 3 || !(ort = OrtGetApiBase()->GetApi(23)))
        return fprintf(stderr, "needs ONNX Runtime 1.23 or newer, and two arguments: plug-in and model\n"), 2;
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "host", &env));
    check(ort->RegisterExecutionProviderLibrary(env, "npusim", argv[1]));
    check(ort->GetEpDevices(env, &devices, &count));
    while (chosen + 1 < count && strcmp(ort->EpDevice_EpName(devices[chosen]), "npusim") != 0)
        chosen++;
    check(ort->CreateSessionOptions(&options));
    const char *keys[] = {"config"}, *values[] = {"edge"};
    check(ort->SessionOptionsAppendExecutionProvider_V2(options, env, &devices[chosen], 1, keys, values, 1));
    check(ort->CreateSession(env, argv[2], options, &session));
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    check(ort->SessionGetInputName(session, 0, allocator, &in));
    check(ort->SessionGetOutputName(session, 0, allocator, &out));
    check(ort->SessionGetInputTypeInfo(session, 0, &type));
    check(ort->CastTypeInfoToTensorInfo(type, &tensor));
    check(ort->GetDimensionsCount(tensor, &rank));
    check(ort->GetDimensions(tensor, shape, rank < 8 ? rank : 8));
    check(ort->CreateTensorAsOrtValue(allocator, shape, rank, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &x));
    check(ort->GetTensorSizeInBytes(x, &bytes));
    check(ort->GetTensorMutableData(x, (void **)&data));
    for (size_t i = 0; i < bytes / sizeof *data; data[i++] = 1) {}
    check(ort->Run(session, NULL, (const char **)&in, (const OrtValue **)&x, 1, (const char **)&out, 1, &y));
    check(ort->GetTensorSizeInBytes(y, &bytes));
    check(ort->GetTensorMutableData(y, (void **)&data));
    for (size_t i = 0; i < bytes / sizeof *data; i++)
        printf("%g\n", data[i]);
    return 0; /* the session ends with the process, as in many programs */
}
