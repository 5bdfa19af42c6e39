"""The structures that the C core shares with this package: see onnxifi_engine.h, and onnxifi.h for those of clients."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

cdef extern from "<stdbool.h>":
    ctypedef bint c_bool "bool"

cdef extern from "embed.h":
    ctypedef struct npu_table_head:
        uint32_t version
        uint32_t size

cdef extern from "onnxifi_engine.h":
    enum:
        NPU_ONNXIFI_VERSION
    ctypedef struct npu_tensor:
        const char *name
        uint64_t data_type
        uint64_t memory_type
        uint64_t buffer
        const uint64_t *shape
        uint32_t dimensions
        uint32_t quantization_axis
        uint64_t quantization_params
        const float *scales
        const int32_t *biases
        c_bool is_offline
    ctypedef struct npu_timing:
        uint64_t cycles
        uint64_t run_ps
        uint64_t queued_ps
        uint64_t host_ps
        uint64_t total_ps
    ctypedef struct npu_span:
        const char *name
        uint64_t start_ps
        uint64_t end_ps
    ctypedef struct npu_outcome:
        int32_t status
        const char *message
        const npu_timing *timing
        const npu_span *spans
        size_t spans_count
    ctypedef struct npu_onnxifi_core:
        void (*complete)(void *job, const npu_outcome *outcome) noexcept nogil
        void (*set_plugged)(uint32_t device, c_bool plugged) noexcept nogil
        int32_t (*inject)(const char *function, int32_t status, uint32_t times) noexcept nogil
    ctypedef struct npu_onnxifi_engine:
        npu_table_head head
        int32_t (*attach)(const npu_onnxifi_core *, uint32_t *) noexcept
        c_bool (*is_plugged)(uint32_t) noexcept
        int32_t (*info)(uint32_t, int32_t, void *, size_t *) noexcept
        int32_t (*compatibility)(uint32_t, const void *, size_t) noexcept
        int32_t (*init_backend)(uint32_t, const uint64_t *, uint32_t, void **) noexcept
        int32_t (*init_graph)(
            void *, const uint64_t *, uint32_t, const void *, size_t, const npu_tensor *, uint32_t, void **
        ) noexcept
        int32_t (*set_io)(void *, const npu_tensor *, uint32_t, const npu_tensor *, uint32_t, void **) noexcept
        int32_t (*start)(void *, void *, c_bool, const npu_onnxifi_core *, void *) noexcept
        void (*drop_backend)(void *) noexcept
        void (*drop_graph)(void *) noexcept
        void (*drop_binding)(void *) noexcept
        void (*set_plugged)(uint32_t, c_bool) noexcept

cdef extern from "onnxifi_ext.h":
    ctypedef struct onnxTensorDescriptorV1:
        int32_t tag
        const char *name
        uint64_t dataType
        uint64_t memoryType
        uint32_t dimensions
        const uint64_t *shape
        uint32_t quantizationAxis
        uint64_t quantizationParams
        const float *scales
        const int32_t *biases
        uint8_t isOffline
        uint64_t buffer
    ctypedef struct onnxMemoryFenceV1:
        int32_t tag
        uint64_t type
        void *event
    ctypedef struct npusimRunTiming:
        uint64_t cycles
        uint64_t runTime
        uint64_t queuedTime
        uint64_t hostTime
        uint64_t totalTime
