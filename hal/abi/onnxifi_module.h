/* For hal.onnxifi._core: the engine's table, before the first call of any function. */
#ifndef NPU_ONNXIFI_MODULE_H
#define NPU_ONNXIFI_MODULE_H

#include "onnxifi_engine.h"

void onnxifi_module_adopt(const npu_onnxifi_engine *table);

#endif
