/* The way from the core into the engine: each function of its table, called through the gate and with room on the stack. */
#include "onnxifi_core.h"

/* The arguments and results of a call; each function uses what it needs. */
typedef struct call {
    int32_t status;
    uint32_t device;
    int32_t type;
    bool flag;
    void *object, *other;
    const void *data;
    void *value;
    size_t size, *length;
    const uint64_t *properties;
    const npu_tensor *first, *second;
    uint32_t *devices, properties_count, first_count, second_count;
    const npu_onnxifi_core *functions;
    void **made;
} call;

/* Statuses: BACKEND_UNAVAILABLE if Python is gone, or was never available. */
static int32_t enter(void (*work)(void *), call *of) {
    of->status = ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    if (core.engine == NULL || !npu_embed_enter()) {
        return of->status;
    }
    if (!npu_embed_call(work, of)) {
        of->status = ONNXIFI_STATUS_NO_SYSTEM_RESOURCES;
    }
    npu_embed_leave();
    return of->status;
}

#define CALL(name, result)                                                                                             \
    static void name(void *argument) {                                                                                 \
        call *of = argument;                                                                                           \
        of->status = result;                                                                                           \
    }
/* The same for a function that has no status. */
#define CALL_VOID(name, what) CALL(name, (what, ONNXIFI_STATUS_SUCCESS))

CALL(attach, core.engine->attach(of->functions, of->devices))
CALL_VOID(is_plugged, of->flag = core.engine->is_plugged(of->device))
CALL(info, core.engine->info(of->device, of->type, of->value, of->length))
CALL(compatibility, core.engine->compatibility(of->device, of->data, of->size))
CALL(init_backend, core.engine->init_backend(of->device, of->properties, of->properties_count, of->made))
CALL(init_graph, core.engine->init_graph(of->object, of->properties, of->properties_count, of->data, of->size, of->first,
                                         of->first_count, of->made))
CALL(set_io, core.engine->set_io(of->object, of->first, of->first_count, of->second, of->second_count, of->made))
CALL(start, core.engine->start(of->object, of->other, of->flag, of->functions, of->value))
CALL_VOID(drop_backend, core.engine->drop_backend(of->object))
CALL_VOID(drop_graph, core.engine->drop_graph(of->object))
CALL_VOID(drop_binding, core.engine->drop_binding(of->object))
CALL_VOID(set_plugged, core.engine->set_plugged(of->device, of->flag))

int32_t engine_attach(const npu_onnxifi_core *functions, uint32_t *devices) {
    return enter(attach, &(call){.functions = functions, .devices = devices});
}

bool engine_is_plugged(uint32_t device) {
    call of = {.device = device};
    return enter(is_plugged, &of) == ONNXIFI_STATUS_SUCCESS && of.flag;
}

int32_t engine_info(uint32_t device, int32_t type, void *value, size_t *size) {
    return enter(info, &(call){.device = device, .type = type, .value = value, .length = size});
}

int32_t engine_compatibility(uint32_t device, const void *model, size_t size) {
    return enter(compatibility, &(call){.device = device, .data = model, .size = size});
}

int32_t engine_init_backend(uint32_t device, const uint64_t *properties, uint32_t count, void **backend) {
    return enter(init_backend,
                 &(call){.device = device, .properties = properties, .properties_count = count, .made = backend});
}

int32_t engine_init_graph(void *backend, const uint64_t *properties, uint32_t count, const void *model, size_t size,
                          const npu_tensor *weights, uint32_t weights_count, void **graph) {
    return enter(init_graph, &(call){.object = backend, .properties = properties, .properties_count = count,
                                     .data = model, .size = size, .first = weights, .first_count = weights_count,
                                     .made = graph});
}

int32_t engine_set_io(void *graph, const npu_tensor *inputs, uint32_t inputs_count, const npu_tensor *outputs,
                      uint32_t outputs_count, void **binding) {
    return enter(set_io, &(call){.object = graph, .first = inputs, .first_count = inputs_count, .second = outputs,
                                 .second_count = outputs_count, .made = binding});
}

int32_t engine_start(void *graph, void *binding, bool traced, const npu_onnxifi_core *functions, void *job) {
    return enter(start,
                 &(call){.object = graph, .other = binding, .flag = traced, .functions = functions, .value = job});
}

void engine_drop_backend(void *backend) { (void)enter(drop_backend, &(call){.object = backend}); }
void engine_drop_graph(void *graph) { (void)enter(drop_graph, &(call){.object = graph}); }
void engine_drop_binding(void *binding) { (void)enter(drop_binding, &(call){.object = binding}); }

int32_t engine_set_plugged(uint32_t device, bool plugged) {
    return enter(set_plugged, &(call){.device = device, .flag = plugged});
}
