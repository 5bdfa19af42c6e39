/* libnpusim-ort.so: a plug-in execution provider of ONNX Runtime 1.23 and newer.
 *
 * This file fills in the structures that ONNX Runtime calls, and passes the calls to Python through the gate of embed.h.
 * Sessions may outlive Python: what is released then is C memory alone. */
#include "embed.h"
#include "embed_python.h"
#include "ort_bridge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* The oldest version that can compile graphs, and the newest whose structures are known here. */
enum { OLDEST = 23, NEWEST = 25, VENDOR_ID = 0x1E4E, MOST_DEVICES = 8, TEXT = 512 };

static const npu_embed_request REQUEST = {
    .library = "libnpusim-ort.so",
    .module = NPU_ORT_MODULE,
    .capsule = NPU_ORT_CAPSULE,
    .version = NPU_ORT_VERSION,
    .size = sizeof(npu_ort_table),
    .at_exit = NULL,
};

static npu_ort ort;

typedef struct factory {
    OrtEpFactory base;
    char *name;
    OrtHardwareDevice *hardware[MOST_DEVICES]; /* ONNX Runtime uses them until the factory is released */
    size_t hardware_count;
} factory;

typedef struct provider {
    OrtEp base;
    char *name;
    void *object;
    char compatibility[TEXT];
} provider;

typedef struct program {
    OrtNodeComputeInfo base;
    void *object;
} program;

typedef struct profiler {
    OrtEpProfiler base;
    provider *of;
} profiler;

/* ------------------------------------------------------------------------------------------- calls of Python */

/* The arguments and the result of one call. Each function uses the members that it needs. */
typedef struct call {
    const npu_ort_table *table;
    void (*work)(struct call *);
    char *problem;
    void *object;
    const char *name;
    const char *const *keys, *const *values, *const *configs;
    const char **names;
    size_t count, devices;
    const OrtLogger *logger;
    const OrtGraph *graph;
    const OrtNode *node;
    OrtNode **context;
    OrtEpGraphSupportInfo *support;
    OrtKernelContext *kernel;
    OrtProfilingEventsContainer *events;
    int64_t offset_ns;
    char *text;
    int verdict;
} call;

static void work(void *of) {
    call *this = of;
    this->work(this);
}

/* Calls Python. The caller frees the text that describes an error; NULL means success. */
static char *problem_of(call *this, void (*function)(call *)) {
    const npu_ort_table *table = npu_embed_table(&REQUEST);
    if (table == NULL || !npu_embed_enter()) {
        return strdup(npu_embed_forked() ? "npusim: this process is a forked child; the device belongs to its parent"
                      : table == NULL    ? "npusim: Python with npusim is not available; standard error says why"
                                         : "npusim: Python has ended");
    }
    this->table = table;
    this->work = function;
    if (!npu_embed_call(work, this)) {
        this->problem = strdup("npusim: there is no memory for a thread");
    }
    npu_embed_leave();
    return this->problem;
}

static OrtStatus *status_of(char *problem) {
    OrtStatus *status = problem != NULL ? ort.CreateStatus(ORT_FAIL, problem) : NULL;
    free(problem);
    return status;
}

static OrtStatus *no_memory(void) { return ort.CreateStatus(ORT_FAIL, "npusim: there is no memory"); }

static void call_release(call *this) { this->table->release(this->object); }

static void release_object(void *object) {
    call this = {.object = object};
    if (object != NULL) {
        free(problem_of(&this, call_release)); /* when Python has ended, there is nothing left to release */
    }
}

/* -------------------------------------------------------------------------------------------------- programs */

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state) {
    (void)context;
    *state = info;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) { (void)info, (void)state; }

static void call_compute(call *this) { this->problem = this->table->compute(this->object, this->kernel); }

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *kernel) {
    NPU_HOST_MODE_ASIDE;
    (void)state;
    call this = {.object = ((program *)info)->object, .kernel = kernel};
    return status_of(problem_of(&this, call_compute));
}

/* --------------------------------------------------------------------------------------------------- profiles */

static void call_start_profiling(call *this) {
    this->problem = this->table->start_profiling(this->object, this->offset_ns);
}

static OrtStatus *start_profiling(OrtEpProfiler *base, int64_t offset_ns) {
    NPU_HOST_MODE_ASIDE;
    call this = {.object = ((profiler *)base)->of->object, .offset_ns = offset_ns};
    return status_of(problem_of(&this, call_start_profiling));
}

static OrtStatus *start_event(OrtEpProfiler *base, uint64_t id) {
    (void)base, (void)id;
    return NULL;
}

static OrtStatus *stop_event(OrtEpProfiler *base, uint64_t id, const OrtProfilingEvent *event) {
    (void)base, (void)id, (void)event;
    return NULL;
}

static void call_end_profiling(call *this) { this->problem = this->table->end_profiling(this->object, this->events); }

static OrtStatus *end_profiling(OrtEpProfiler *base, OrtProfilingEventsContainer *events) {
    NPU_HOST_MODE_ASIDE;
    call this = {.object = ((profiler *)base)->of->object, .events = events};
    return status_of(problem_of(&this, call_end_profiling));
}

static void release_profiler(OrtEpProfiler *base) { free(base); }

static OrtStatus *create_profiler(OrtEp *base, OrtEpProfiler **made) {
    profiler *new = calloc(1, sizeof *new);
    if (new == NULL) {
        return no_memory();
    }
    new->base = (OrtEpProfiler){ort.version, release_profiler, start_profiling, start_event, stop_event, end_profiling};
    new->of = (provider *)base;
    *made = &new->base;
    return NULL;
}

/* -------------------------------------------------------------------------------------------------- providers */

static const char *provider_name(const OrtEp *base) { return ((const provider *)base)->name; }

static void call_claim(call *this) { this->problem = this->table->claim(this->object, this->graph, this->support); }

static OrtStatus *get_capability(OrtEp *base, const OrtGraph *graph, OrtEpGraphSupportInfo *support) {
    NPU_HOST_MODE_ASIDE;
    call this = {.object = ((provider *)base)->object, .graph = graph, .support = support};
    return status_of(problem_of(&this, call_claim));
}

static void call_compile(call *this) {
    this->problem = this->table->compile(this->object, this->graph, this->node, &this->object, this->context);
}

static void release_programs(OrtEp *base, OrtNodeComputeInfo **infos, size_t count) {
    NPU_HOST_MODE_ASIDE;
    (void)base;
    for (size_t i = 0; i < count; i++) {
        if (infos[i] != NULL) {
            release_object(((program *)infos[i])->object);
            free(infos[i]);
            infos[i] = NULL;
        }
    }
}

static OrtStatus *compile(OrtEp *base, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          OrtNodeComputeInfo **infos, OrtNode **contexts) {
    NPU_HOST_MODE_ASIDE;
    for (size_t i = 0; i < count; i++) {
        call this = {.object = ((provider *)base)->object,
                     .graph = graphs[i],
                     .node = fused[i],
                     .context = contexts != NULL ? &contexts[i] : NULL};
        OrtStatus *status = status_of(problem_of(&this, call_compile));
        program *new = status == NULL ? calloc(1, sizeof *new) : NULL;
        if (new == NULL) {
            release_programs(base, infos, i);
            return status != NULL ? status : no_memory();
        }
        new->base = (OrtNodeComputeInfo){ort.version, create_state, compute, release_state};
        new->object = this.object;
        infos[i] = &new->base;
    }
    return NULL;
}

static void call_set_options(call *this) {
    this->problem = this->table->set_options(this->object, this->keys, this->values, this->count);
}

static OrtStatus *set_options(OrtEp *base, const char *const *keys, const char *const *values, size_t count) {
    NPU_HOST_MODE_ASIDE;
    call this = {.object = ((provider *)base)->object, .keys = keys, .values = values, .count = count};
    return status_of(problem_of(&this, call_set_options));
}

static void call_compatibility(call *this) {
    this->problem = this->table->compatibility(this->object, this->text, TEXT);
}

static const char *compatibility(OrtEp *base, const OrtGraph *graph) {
    NPU_HOST_MODE_ASIDE;
    (void)graph;
    provider *of = (provider *)base;
    call this = {.object = of->object, .text = of->compatibility};
    free(problem_of(&this, call_compatibility)); /* an empty text then */
    return of->compatibility;
}

static OrtStatus *runs_concurrently(OrtEp *base, bool *answer) {
    (void)base;
    *answer = true;
    return NULL;
}

/* --------------------------------------------------------------------------------------------------- factories */

static const char *factory_name(const OrtEpFactory *base) { return ((const factory *)base)->name; }

static const char *vendor(const OrtEpFactory *base) {
    (void)base;
    return "npusim";
}

static uint32_t vendor_id(const OrtEpFactory *base) {
    (void)base;
    return VENDOR_ID;
}

static const char *version(const OrtEpFactory *base) {
    (void)base;
    return NPU_PACKAGE_VERSION;
}

/* ONNX Runtime allows devices that no hardware stands behind for registrations with names that end in ".virtual". */
static bool virtual_devices_allowed(void) {
    OrtKeyValuePairs *pairs = NULL;
    if (ort.GetEnvConfigEntries == NULL) {
        return false;
    }
    OrtStatus *status = ort.GetEnvConfigEntries(&pairs);
    if (status != NULL) {
        ort.ReleaseStatus(status);
        return false;
    }
    const char *value = ort.GetKeyValue(pairs, "allow_virtual_devices");
    bool allowed = value != NULL && strcmp(value, "1") == 0;
    ort.ReleaseKeyValuePairs(pairs);
    return allowed;
}

static void call_devices(call *this) {
    this->problem = this->table->devices(this->names, this->devices, &this->count);
}

static OrtStatus *add_device(factory *of, const OrtHardwareDevice *hardware, const char *config, OrtEpDevice **made) {
    OrtKeyValuePairs *metadata = NULL;
    ort.CreateKeyValuePairs(&metadata);
    ort.AddKeyValuePair(metadata, "config", config);
    OrtStatus *status = ort.CreateEpDevice(&of->base, hardware, metadata, NULL, made);
    ort.ReleaseKeyValuePairs(metadata);
    return status;
}

static OrtStatus *supported_devices(OrtEpFactory *base, const OrtHardwareDevice *const *devices, size_t count,
                                    OrtEpDevice **made, size_t room, size_t *number) {
    NPU_HOST_MODE_ASIDE;
    factory *of = (factory *)base;
    const char *configs[MOST_DEVICES];
    bool without_hardware = virtual_devices_allowed();
    *number = 0;
    room = room < MOST_DEVICES ? room : MOST_DEVICES;
    call this = {.names = configs, .devices = without_hardware ? room : (room > 0)};
    OrtStatus *status = status_of(problem_of(&this, call_devices));
    if (!without_hardware) {
        /* One device on the CPU that simulates it: several would be indistinguishable for whoever names the provider. */
        size_t cpu = 0;
        while (cpu < count && ort.HardwareDevice_Type(devices[cpu]) != ORT_DEVICE_CPU) {
            cpu++;
        }
        if (status == NULL && cpu < count && this.count > 0) {
            status = add_device(of, devices[cpu], configs[0], &made[0]);
            *number = status == NULL;
        }
        return status;
    }
    for (uint32_t i = 0; status == NULL && i < this.count && of->hardware_count < MOST_DEVICES; i++) {
        OrtKeyValuePairs *metadata = NULL;
        ort.CreateKeyValuePairs(&metadata);
        ort.AddKeyValuePair(metadata, "is_virtual", "1");
        OrtHardwareDevice *hardware = NULL;
        status = ort.CreateHardwareDevice(ORT_DEVICE_NPU, VENDOR_ID, i, "npusim", metadata, &hardware);
        ort.ReleaseKeyValuePairs(metadata);
        if (status == NULL) {
            of->hardware[of->hardware_count++] = hardware;
            status = add_device(of, hardware, configs[i], &made[*number]);
            *number += status == NULL;
        }
    }
    return status;
}

static void call_open(call *this) {
    this->problem = this->table->open(&ort, this->name, this->configs, this->devices, this->keys, this->values,
                                      this->count, this->logger, &this->object);
}

static OrtStatus *create_provider(OrtEpFactory *base, const OrtHardwareDevice *const *devices,
                                  const OrtKeyValuePairs *const *metadata, size_t count,
                                  const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **made) {
    NPU_HOST_MODE_ASIDE;
    (void)devices;
    const char *configs[MOST_DEVICES];
    OrtKeyValuePairs *pairs = NULL;
    call this = {.name = factory_name(base), .configs = configs, .logger = logger};
    for (size_t i = 0; i < count && i < MOST_DEVICES; i++) {
        const char *config = metadata[i] != NULL ? ort.GetKeyValue(metadata[i], "config") : NULL;
        if (config != NULL) {
            configs[this.devices++] = config;
        }
    }
    OrtStatus *status = ort.GetSessionOptionsConfigEntries(options, &pairs);
    if (status != NULL) {
        return status;
    }
    ort.GetKeyValuePairs(pairs, &this.keys, &this.values, &this.count);
    status = status_of(problem_of(&this, call_open));
    ort.ReleaseKeyValuePairs(pairs);
    provider *new = status == NULL ? calloc(1, sizeof *new) : NULL;
    if (new == NULL || (new->name = strdup(this.name)) == NULL) {
        release_object(this.object);
        free(new);
        return status != NULL ? status : no_memory();
    }
    new->object = this.object;
    new->base = (OrtEp){
        .ort_version_supported = ort.version,
        .GetName = provider_name,
        .GetCapability = get_capability,
        .Compile = compile,
        .ReleaseNodeComputeInfos = release_programs,
        .SetDynamicOptions = set_options,
        .GetCompiledModelCompatibilityInfo = compatibility,
        .IsConcurrentRunSupported = runs_concurrently,
        .CreateProfiler = create_profiler,
    };
    *made = &new->base;
    return NULL;
}

static void release_provider(OrtEpFactory *base, OrtEp *ep) {
    NPU_HOST_MODE_ASIDE;
    (void)base;
    provider *of = (provider *)ep;
    if (of != NULL) {
        release_object(of->object);
        free(of->name);
        free(of);
    }
}

static void call_validate(call *this) { this->problem = this->table->validate(this->name, &this->verdict); }

static OrtStatus *validate(OrtEpFactory *base, const OrtHardwareDevice *const *devices, size_t count, const char *info,
                           int *verdict) {
    NPU_HOST_MODE_ASIDE;
    (void)base, (void)devices, (void)count;
    call this = {.name = info};
    OrtStatus *status = status_of(problem_of(&this, call_validate));
    *verdict = this.verdict;
    return status;
}

/* Tensors are in the memory of the CPU. */
static OrtStatus *no_allocator(OrtEpFactory *base, const void *memory, const OrtKeyValuePairs *options, void **made) {
    (void)base, (void)memory, (void)options;
    *made = NULL;
    return NULL;
}

static void release_allocator(OrtEpFactory *base, void *allocator) { (void)base, (void)allocator; }

static OrtStatus *no_transfer(OrtEpFactory *base, void **made) {
    (void)base;
    *made = NULL;
    return NULL;
}

static bool uses_streams(const OrtEpFactory *base) {
    (void)base;
    return false;
}

/* ------------------------------------------------------------------------------------------------------ exports */

/* A function of a table of function pointers; memcpy, because C has no conversion from void * to a function. */
#define SLOT(table, name, slot, result, parameters) name##_SLOT = slot,
enum { NPU_ORT_FUNCTIONS(SLOT) };
#define TAKE(table, name, slot, result, parameters) memcpy(&ort.name, table + slot, sizeof ort.name);
#define TAKE_LATER(table, name, slot, minor, result, parameters)                                                       \
    if (ort.version >= minor) {                                                                                        \
        memcpy(&ort.name, table + slot, sizeof ort.name);                                                              \
    }

/* Finds all functions; a status if this ONNX Runtime is too old. */
static OrtStatus *bind(const OrtApiBase *base) {
    unsigned major = 0, minor = 0;
    void *const *oldest = base->GetApi(1);
    if (sscanf(base->GetVersionString(), "%u.%u", &major, &minor) != 2 || major != 1 || minor < OLDEST) {
        char text[TEXT];
        snprintf(text, sizeof text, "npusim needs ONNX Runtime 1.%d or newer, this is %s", OLDEST,
                 base->GetVersionString());
        OrtStatus *(*create)(int, const char *) = NULL;
        memcpy(&create, oldest, sizeof create);
        return create(ORT_FAIL, text);
    }
    ort.version = minor < NEWEST ? minor : NEWEST;
    void *const *api = base->GetApi(ort.version);
    memcpy(&ort.GetEpApi, api + GetEpApi_SLOT, sizeof ort.GetEpApi);
    memcpy(&ort.GetModelEditorApi, api + GetModelEditorApi_SLOT, sizeof ort.GetModelEditorApi);
    void *const *ep = ort.GetEpApi(), *const *editor = ort.GetModelEditorApi();
    NPU_ORT_FUNCTIONS(TAKE)
    NPU_ORT_LATER_FUNCTIONS(TAKE_LATER)
    return NULL;
}

EXPORT OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                                    OrtEpFactory **factories, size_t room, size_t *made) {
    NPU_HOST_MODE_ASIDE;
    (void)logger;
    *made = 0;
    OrtStatus *status = bind(base);
    if (status != NULL) {
        return status;
    }
    if (npu_embed_table(&REQUEST) == NULL) {
        return ort.CreateStatus(ORT_FAIL, "npusim: Python with npusim is not available; standard error says why");
    }
    if (room < 1) {
        return ort.CreateStatus(ORT_FAIL, "npusim makes one factory, and there is room for none");
    }
    factory *new = calloc(1, sizeof *new);
    if (new == NULL || (new->name = strdup(name)) == NULL) {
        free(new);
        return no_memory();
    }
    new->base = (OrtEpFactory){
        .ort_version_supported = ort.version,
        .GetName = factory_name,
        .GetVendor = vendor,
        .GetSupportedDevices = supported_devices,
        .CreateEp = create_provider,
        .ReleaseEp = release_provider,
        .GetVendorId = vendor_id,
        .GetVersion = version,
        .ValidateCompiledModelCompatibilityInfo = validate,
        .CreateAllocator = no_allocator,
        .ReleaseAllocator = release_allocator,
        .CreateDataTransfer = no_transfer,
        .IsStreamAware = uses_streams,
    };
    factories[0] = &new->base;
    *made = 1;
    return NULL;
}

EXPORT OrtStatus *ReleaseEpFactory(OrtEpFactory *base) {
    factory *of = (factory *)base;
    while (of->hardware_count > 0) {
        ort.ReleaseHardwareDevice(of->hardware[--of->hardware_count]);
    }
    /* Sessions that are still there call their factory when they end, although ONNX Runtime forbids it: it stays. */
    return NULL;
}
