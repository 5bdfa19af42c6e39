/* Which function returns which status, and failures on demand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxifi_core.h"

#define S(name) ONNXIFI_STATUS_##name
#define RESOURCES S(NO_SYSTEM_MEMORY), S(NO_SYSTEM_RESOURCES), S(NO_DEVICE_MEMORY), S(NO_DEVICE_RESOURCES)
#define LOST S(BACKEND_UNAVAILABLE), S(INTERNAL_ERROR)
#define MODEL                                                                                                          \
    S(INVALID_POINTER), S(INVALID_SIZE), S(INVALID_PROTOBUF), S(INVALID_MODEL), S(UNSUPPORTED_VERSION),                \
        S(UNSUPPORTED_OPERATOR), S(UNSUPPORTED_ATTRIBUTE), S(UNSUPPORTED_SHAPE), S(UNSUPPORTED_DATATYPE),              \
        S(MISMATCHING_SHAPE), S(MISMATCHING_DATATYPE)
#define DESCRIPTORS                                                                                                    \
    S(INVALID_NAME), S(INVALID_SHAPE), S(INVALID_DATATYPE), S(INVALID_MEMORY_TYPE), S(INVALID_MEMORY_LOCATION),        \
        S(UNSUPPORTED_TAG), S(UNSUPPORTED_SHAPE), S(UNSUPPORTED_MEMORY_TYPE), S(MISMATCHING_SHAPE),                    \
        S(MISMATCHING_DATATYPE)

enum { MOST_STATUSES = 32 };

/* Besides SUCCESS, which ends a list. onnxInitGraph has two errors without a status in the specification: a wrong tag
 * and a wrong name of a weight descriptor. */
static const struct {
    const char *name;
    int32_t statuses[MOST_STATUSES];
} functions[FUNCTION_COUNT] = {
    [FUNCTION_GetBackendIDs] = {"onnxGetBackendIDs", {S(FALLBACK), S(INVALID_POINTER), S(NO_SYSTEM_MEMORY), S(INTERNAL_ERROR)}},
    [FUNCTION_ReleaseBackendID] = {"onnxReleaseBackendID", {S(INVALID_ID), S(INTERNAL_ERROR)}},
    [FUNCTION_GetBackendInfo] = {"onnxGetBackendInfo",
                                 {S(FALLBACK), S(INVALID_ID), S(INVALID_POINTER), S(UNSUPPORTED_ATTRIBUTE), S(BACKEND_UNAVAILABLE)}},
    [FUNCTION_GetBackendCompatibility] = {"onnxGetBackendCompatibility",
                                          {S(FALLBACK), S(INVALID_ID), MODEL, S(NO_SYSTEM_MEMORY), LOST}},
    [FUNCTION_InitBackend] = {"onnxInitBackend",
                              {S(INVALID_ID), S(INVALID_POINTER), S(INVALID_PROPERTY), S(UNSUPPORTED_PROPERTY), RESOURCES, LOST}},
    [FUNCTION_ReleaseBackend] = {"onnxReleaseBackend", {S(INVALID_BACKEND), S(INTERNAL_ERROR)}},
    [FUNCTION_InitEvent] = {"onnxInitEvent", {S(INVALID_BACKEND), S(INVALID_POINTER), RESOURCES, LOST}},
    [FUNCTION_SignalEvent] = {"onnxSignalEvent", {S(INVALID_EVENT), S(INVALID_STATE), LOST}},
    [FUNCTION_GetEventState] = {"onnxGetEventState", {S(INVALID_EVENT), S(INVALID_POINTER), LOST}},
    [FUNCTION_WaitEvent] = {"onnxWaitEvent", {S(INVALID_EVENT), LOST}},
    [FUNCTION_ReleaseEvent] = {"onnxReleaseEvent", {S(INVALID_EVENT), S(INTERNAL_ERROR)}},
    [FUNCTION_InitGraph] = {"onnxInitGraph",
                            {S(FALLBACK), S(INVALID_BACKEND), S(INVALID_PROPERTY), S(UNSUPPORTED_PROPERTY), MODEL, DESCRIPTORS, RESOURCES, LOST}},
    [FUNCTION_SetGraphIO] = {"onnxSetGraphIO",
                             {S(INVALID_GRAPH), S(INVALID_POINTER), DESCRIPTORS, S(UNIDENTIFIED_NAME), RESOURCES, LOST}},
    [FUNCTION_RunGraph] = {"onnxRunGraph",
                           {S(INVALID_POINTER), S(INVALID_GRAPH), S(INVALID_FENCE_TYPE), S(INVALID_EVENT), S(UNSUPPORTED_TAG),
                            S(UNSUPPORTED_FENCE_TYPE), S(UNIDENTIFIED_NAME), RESOURCES, LOST}},
    [FUNCTION_ReleaseGraph] = {"onnxReleaseGraph", {S(INVALID_GRAPH), S(INTERNAL_ERROR)}},
    [FUNCTION_RUN] = {"run", {RESOURCES, LOST}},
};

/* Names for NPUSIM_ONNXIFI_INJECT: what can be injected without a wrong argument to show for it. */
static const struct {
    const char *name;
    int32_t status;
} names[] = {
    {"NO_SYSTEM_MEMORY", S(NO_SYSTEM_MEMORY)},       {"NO_SYSTEM_RESOURCES", S(NO_SYSTEM_RESOURCES)},
    {"NO_DEVICE_MEMORY", S(NO_DEVICE_MEMORY)},       {"NO_DEVICE_RESOURCES", S(NO_DEVICE_RESOURCES)},
    {"BACKEND_UNAVAILABLE", S(BACKEND_UNAVAILABLE)}, {"INTERNAL_ERROR", S(INTERNAL_ERROR)},
};

static bool listed(int function, int32_t status) {
    for (int i = 0; functions[function].statuses[i] != S(SUCCESS); i++) {
        if (functions[function].statuses[i] == status) {
            return true;
        }
    }
    return false;
}

int32_t fault_filter(int function, int32_t status) {
    if (status == S(SUCCESS) || listed(function, status)) {
        return status;
    }
    return listed(function, S(INTERNAL_ERROR)) ? S(INTERNAL_ERROR) : S(BACKEND_UNAVAILABLE);
}

int32_t fault_take(int function) {
    fault *of = &core.faults[function];
    if (of->times == 0) {
        return S(SUCCESS);
    }
    of->times--;
    return of->status;
}

static int32_t set_fault(const char *function, int32_t status, uint32_t times) {
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        if (strcmp(functions[i].name, function) == 0) {
            if (!listed(i, status)) {
                return S(UNSUPPORTED_ATTRIBUTE);
            }
            core.faults[i] = (fault){status, times};
            return S(SUCCESS);
        }
    }
    return S(INVALID_NAME);
}

int32_t fault_inject(const char *function, int32_t status, uint32_t times) {
    core_enter();
    int32_t result = set_fault(function, status, times);
    core_leave();
    return result;
}

/* "function=STATUS" or "function=STATUS:times" */
static bool read_entry(const char *entry) {
    char function[64], status[64];
    unsigned times = UINT32_MAX;
    int fields = sscanf(entry, " %63[^=]=%63[^:]:%u", function, status, &times);
    for (size_t i = 0; fields >= 2 && i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, status) == 0) {
            return set_fault(function, names[i].status, times) == S(SUCCESS);
        }
    }
    return false;
}

void fault_read_environment(void) {
    const char *wanted = getenv("NPUSIM_ONNXIFI_INJECT");
    char *copy = wanted != NULL ? strdup(wanted) : NULL;
    char *rest = NULL;
    for (char *entry = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; entry != NULL; entry = strtok_r(NULL, ",", &rest)) {
        if (!read_entry(entry)) {
            fprintf(stderr, "NPUSIM_ONNXIFI_INJECT: '%s' must be FUNCTION=STATUS or FUNCTION=STATUS:TIMES with a status that "
                            "the function returns: onnxInitGraph=NO_DEVICE_MEMORY:2\n", entry);
        }
    }
    free(copy);
}
