/* Where the core inside the Python module gets its engine from: the module itself. */
#include "onnxifi_module.h"

#include "onnxifi_core.h"

static const npu_onnxifi_engine *own;

void onnxifi_module_adopt(const npu_onnxifi_engine *table) { own = table; }

const npu_onnxifi_engine *onnxifi_engine(void (*at_exit)(void)) {
    static npu_embed_request request = {.library = "hal.onnxifi"};
    request.at_exit = at_exit;
    npu_embed_adopt(&request, own);
    return npu_embed_table(&request);
}
