/* What libneuralnetworks.so and hal.nnapi.capi._bridge agree upon. */
#ifndef NPU_NEURALNETWORKS_BRIDGE_H
#define NPU_NEURALNETWORKS_BRIDGE_H

#include "embed.h"

#define NPU_NNAPI_MODULE "hal.nnapi.capi._bridge"
#define NPU_NNAPI_CAPSULE "TABLE"
#define NPU_NNAPI_VERSION 1

typedef struct npu_nnapi_table {
    npu_table_head head;
    /* Call a function of the C API by name with count 64-bit words. Returns its result. Takes Python's lock, raises
     * nothing. */
    int64_t (*call)(const char *function, const int64_t *words, int32_t count);
} npu_nnapi_table;

#endif
