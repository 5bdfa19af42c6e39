/* The NNAPI C API: each function passes its name and its arguments, as 64-bit words, to Python.
 *
 * Handles are serial numbers that Python looks up. Nothing here dereferences them. */
#include "NeuralNetworks.h"

#include "embed.h"
#include "neuralnetworks_bridge.h"
#include "neuralnetworks_call.h"

static const npu_embed_request REQUEST = {
    .library = "libneuralnetworks.so",
    .module = NPU_NNAPI_MODULE,
    .capsule = NPU_NNAPI_CAPSULE,
    .version = NPU_NNAPI_VERSION,
    .size = sizeof(npu_nnapi_table),
    .at_exit = NULL,
};

typedef struct spoken {
    const npu_nnapi_table *table;
    const char *function;
    const int64_t *words;
    int32_t count;
    int64_t result;
} spoken;

static void speak(void *of)
{
    spoken *call = of;
    call->result = call->table->call(call->function, call->words, call->count);
}

int npu_nnapi_call(const char *function, const int64_t *words, int32_t count)
{
    NPU_HOST_MODE_ASIDE;
    const npu_nnapi_table *table = npu_embed_table(&REQUEST);
    if (!table)
        return npu_embed_forked() ? ANEURALNETWORKS_DEAD_OBJECT : ANEURALNETWORKS_UNAVAILABLE_DEVICE;
    if (!npu_embed_enter())
        return ANEURALNETWORKS_DEAD_OBJECT;
    spoken of = {table, function, words, count, ANEURALNETWORKS_OUT_OF_MEMORY};
    (void)npu_embed_call(speak, &of); /* where there can be no thread for it, the result stays */
    npu_embed_leave();
    return (int)of.result;
}

#include "neuralnetworks_functions.h"

EXPORT int ANeuralNetworks_getDeviceCount(uint32_t *numDevices)
{
    const int64_t words[] = {POINTER(numDevices)};
    int result = npu_nnapi_call("ANeuralNetworks_getDeviceCount", words, COUNT(words));
    if (result != ANEURALNETWORKS_UNAVAILABLE_DEVICE || !numDevices)
        return result;
    *numDevices = 0; /* no devices can be simulated; standard error says why */
    return ANEURALNETWORKS_NO_ERROR;
}

EXPORT int64_t ANeuralNetworks_getRuntimeFeatureLevel(void)
{
    return ANEURALNETWORKS_FEATURE_LEVEL_8;
}

EXPORT uint64_t ANeuralNetworks_getDefaultLoopTimeout(void)
{
    return UINT64_C(2000000000);
}

EXPORT uint64_t ANeuralNetworks_getMaximumLoopTimeout(void)
{
    return UINT64_C(15000000000);
}
