/* Devices and backends: the functions around onnxBackendID and onnxBackend. */
#include <stdlib.h>

#include "onnxifi_core.h"

enum { MOST_PROPERTIES = 128 };

static bool device_alive(const device *of) { return !npu_embed_forked() && of->plugged; }

/* The device of an ID that is given out; core.lock is held then. NULL, and no lock held, otherwise. */
static device *find_device(const void *handle) {
    core_enter();
    device *found = npu_handle_get(&core.handles, KIND_ID, handle);
    if (found != NULL && found->references > 0) {
        return found;
    }
    core_leave();
    return NULL;
}

/* The injected status, after the device's own. With the lock held. */
static int32_t trouble(const device *of, int function) {
    return device_alive(of) ? fault_take(function) : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
}

/* ----------------------------------------------------------------------------------------------------- IDs */

static int32_t list_ids(onnxBackendID *ids, size_t *count) {
    size_t room = *count, available = 0;
    int32_t status = core.status != ONNXIFI_STATUS_SUCCESS ? core.status : fault_take(FUNCTION_GetBackendIDs);
    if (status != ONNXIFI_STATUS_SUCCESS) {
        return fault_filter(FUNCTION_GetBackendIDs, status);
    }
    for (uint32_t i = 0; i < core.devices_count; i++) {
        available += device_alive(&core.devices[i]);
    }
    *count = available;
    if (ids == NULL || room < available) {
        return ONNXIFI_STATUS_FALLBACK;
    }
    for (uint32_t i = 0; i < core.devices_count; i++) {
        if (device_alive(&core.devices[i])) {
            core.devices[i].references++;
            *ids++ = core.devices[i].id;
        }
    }
    return ONNXIFI_STATUS_SUCCESS;
}

onnxStatus onnxGetBackendIDs(onnxBackendID *ids, size_t *count) {
    NPU_HOST_MODE_ASIDE;
    if (count == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    core_enter();
    int32_t status = list_ids(ids, count);
    core_leave();
    return status;
}

onnxStatus onnxReleaseBackendID(onnxBackendID handle) {
    NPU_HOST_MODE_ASIDE;
    device *of = find_device(handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    int32_t status = fault_take(FUNCTION_ReleaseBackendID);
    if (status == ONNXIFI_STATUS_SUCCESS) {
        of->references--;
    }
    core_leave();
    return status;
}

/* ------------------------------------------------------------------------------------------------- queries */

onnxStatus onnxGetBackendInfo(onnxBackendID handle, onnxBackendInfo type, void *value, size_t *size) {
    NPU_HOST_MODE_ASIDE;
    if (size == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    const device *of = find_device(handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    int32_t status = trouble(of, FUNCTION_GetBackendInfo);
    core_leave();
    if (status == ONNXIFI_STATUS_SUCCESS) {
        status = engine_info(of->number, type, value, size);
    }
    return fault_filter(FUNCTION_GetBackendInfo, status);
}

onnxStatus onnxGetBackendCompatibility(onnxBackendID handle, size_t size, const void *model) {
    NPU_HOST_MODE_ASIDE;
    const device *of = find_device(handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    int32_t status = model == NULL             ? ONNXIFI_STATUS_INVALID_POINTER
                     : size == 0               ? ONNXIFI_STATUS_INVALID_SIZE
                     : size > MOST_MODEL_BYTES ? ONNXIFI_STATUS_INVALID_PROTOBUF
                                               : trouble(of, FUNCTION_GetBackendCompatibility);
    core_leave();
    if (status == ONNXIFI_STATUS_SUCCESS) {
        status = engine_compatibility(of->number, model, size);
    }
    return fault_filter(FUNCTION_GetBackendCompatibility, status);
}

/* ------------------------------------------------------------------------------------------------ backends */

/* The handle of a new backend for an engine object; NULL if out of memory. */
static void *publish(device *on, uint32_t epoch, void *engine) {
    backend *made = object_new(KIND_BACKEND, sizeof *made, on);
    if (made == NULL) {
        return NULL;
    }
    made->base.epoch = epoch; /* the device may have been removed meanwhile */
    made->engine = engine;
    core_enter();
    void *handle = npu_handle_new(&core.handles, KIND_BACKEND, made);
    core_leave();
    if (handle == NULL) {
        free(made);
    }
    return handle;
}

/* Pairs of an ID and a value up to the ID 0: how many numbers; more than can be meant are UINT32_MAX. */
static uint32_t count_pairs(const uint64_t *properties) {
    uint32_t count = 0;
    while (properties != NULL && properties[count] != ONNXIFI_BACKEND_PROPERTY_NONE) {
        count += 2;
        if (count > MOST_PROPERTIES) {
            return UINT32_MAX;
        }
    }
    return count;
}

static int32_t init_backend(device *on, uint32_t epoch, const uint64_t *properties, onnxBackend *out) {
    void *engine = NULL;
    uint32_t count = count_pairs(properties);
    if (count == UINT32_MAX) {
        return ONNXIFI_STATUS_INVALID_PROPERTY;
    }
    int32_t status = engine_init_backend(on->number, properties, count, &engine);
    if (status == ONNXIFI_STATUS_SUCCESS) {
        *out = publish(on, epoch, engine);
        if (*out == NULL) {
            engine_drop_backend(engine);
            status = ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
        }
    }
    return fault_filter(FUNCTION_InitBackend, status);
}

onnxStatus onnxInitBackend(onnxBackendID handle, const uint64_t *properties, onnxBackend *out) {
    NPU_HOST_MODE_ASIDE;
    if (out == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *out = NULL;
    device *on = find_device(handle);
    if (on == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    uint32_t epoch = on->epoch;
    int32_t status = trouble(on, FUNCTION_InitBackend);
    core_leave();
    return status != ONNXIFI_STATUS_SUCCESS ? status : init_backend(on, epoch, properties, out);
}

onnxStatus onnxReleaseBackend(onnxBackend handle) {
    NPU_HOST_MODE_ASIDE;
    core_enter();
    backend *of = npu_handle_get(&core.handles, KIND_BACKEND, handle);
    int32_t status = of != NULL ? fault_take(FUNCTION_ReleaseBackend) : ONNXIFI_STATUS_INVALID_BACKEND;
    if (status == ONNXIFI_STATUS_SUCCESS) {
        npu_handle_remove(&core.handles, KIND_BACKEND, handle);
    }
    core_leave();
    if (status == ONNXIFI_STATUS_SUCCESS) {
        object_release(of);
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------- extensions */

onnxStatus backend_inject(onnxBackendID handle, const char *function, onnxStatus status, uint32_t times) {
    NPU_HOST_MODE_ASIDE;
    if (find_device(handle) == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    core_leave();
    return function != NULL ? fault_inject(function, status, times) : ONNXIFI_STATUS_INVALID_POINTER;
}

onnxStatus backend_set_plugged(onnxBackendID handle, bool plugged) {
    const device *of = find_device(handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    core_leave();
    return engine_set_plugged(of->number, plugged); /* also notifies this core */
}

/* Whether the ID's device can be asked for extensions: SUCCESS, INVALID_ID or BACKEND_UNAVAILABLE. */
onnxStatus backend_check(onnxBackendID handle) {
    const device *of = find_device(handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_ID;
    }
    int32_t status = device_alive(of) ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    core_leave();
    return status;
}
