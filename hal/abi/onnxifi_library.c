/* Where the core of a shared library gets its engine from: Python, found or started. */
#include "onnxifi_core.h"

const npu_onnxifi_engine *onnxifi_engine(void (*at_exit)(void)) {
    static npu_embed_request request = {
        .library = NPU_LIBRARY_NAME,
        .module = "hal.onnxifi._table",
        .capsule = "_C_API",
        .version = NPU_ONNXIFI_VERSION,
        .size = sizeof(npu_onnxifi_engine),
    };
    request.at_exit = at_exit;
    return npu_embed_table(&request);
}
