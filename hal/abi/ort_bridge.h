/* What libnpusim-ort.so and hal.ort._bridge agree upon. */
#ifndef NPU_ORT_BRIDGE_H
#define NPU_ORT_BRIDGE_H

#include "embed.h"
#include "ort_abi.h"

#define NPU_ORT_MODULE "hal.ort._bridge"
#define NPU_ORT_CAPSULE "TABLE"
#define NPU_ORT_VERSION 1

/* Functions take Python's lock and raise nothing. Those that can fail return an error message, which the caller frees
 * with free(), or NULL. A provider, and a program, is a reference to a Python object: release() ends it. */
typedef struct npu_ort_table {
    npu_table_head head;
    /* The names of the devices to offer, at most room: strings that stay. */
    char *(*devices)(const char **configs, size_t room, size_t *count);
    /* configs: those of the devices of the session; keys and values: its options. */
    char *(*open)(const npu_ort *ort, const char *name, const char *const *configs, size_t devices,
                  const char *const *keys, const char *const *values, size_t count, const OrtLogger *logger, void **made);
    char *(*claim)(void *provider, const OrtGraph *graph, OrtEpGraphSupportInfo *support);
    /* context: the node with the compiled program if the session's options ask for it, or NULL. */
    char *(*compile)(void *provider, const OrtGraph *graph, const OrtNode *fused, void **program, OrtNode **context);
    char *(*compute)(void *program, OrtKernelContext *kernel);
    char *(*set_options)(void *provider, const char *const *keys, const char *const *values, size_t count);
    char *(*start_profiling)(void *provider, int64_t offset_ns);
    char *(*end_profiling)(void *provider, OrtProfilingEventsContainer *events);
    /* What a compiled model depends on, in at most room bytes; and whether one with this text can be used. */
    char *(*compatibility)(void *provider, char *text, size_t room);
    char *(*validate)(const char *text, int *verdict);
    void (*release)(void *object);
} npu_ort_table;

#endif
