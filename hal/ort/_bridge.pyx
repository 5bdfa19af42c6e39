"""The table of functions that libnpusim-ort.so calls: graphs and tensors of ONNX Runtime as Python objects, and back.

Tensors are views of ONNX Runtime's memory. Views of weights are valid during one call: what is needed later is copied.
"""

import numpy as np
import onnx

from cpython.exc cimport PyErr_SetInterrupt
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strdup

from hal.ort import provider as providers
from hal.ort.provider import OrtError, Received
from npusim.frontends.onnx.tensors import ELEMENT_TYPES


cdef extern from "Python.h":
    enum: PyBUF_READ


cdef extern from "stdbool.h":
    ctypedef bint c_bool "bool"


cdef extern from "ort_bridge.h":
    ctypedef struct OrtStatus
    ctypedef struct OrtLogger
    ctypedef struct OrtGraph
    ctypedef struct OrtNode
    ctypedef struct OrtValueInfo
    ctypedef struct OrtTypeInfo
    ctypedef struct OrtTensorTypeAndShapeInfo
    ctypedef struct OrtOpAttr
    ctypedef struct OrtValue
    ctypedef struct OrtKernelContext
    ctypedef struct OrtEpGraphSupportInfo
    ctypedef struct OrtProfilingEvent
    ctypedef struct OrtProfilingEventsContainer

    ctypedef struct OrtNodeFusionOptions:
        uint32_t ort_version_supported
        c_bool drop_constant_initializers

    ctypedef struct npu_ort:
        uint32_t version
        const char *(*GetErrorMessage)(const OrtStatus *)
        void (*ReleaseStatus)(OrtStatus *)
        OrtStatus *(*GetTensorMutableData)(OrtValue *, void **)
        OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **)
        OrtStatus *(*GetOnnxTypeFromTypeInfo)(const OrtTypeInfo *, int *)
        OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *, int *)
        OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *, size_t *)
        OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t)
        OrtStatus *(*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo *, const char **, size_t)
        c_bool (*TensorTypeAndShape_HasShape)(const OrtTensorTypeAndShapeInfo *)
        OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **)
        OrtStatus *(*KernelContext_GetInputCount)(const OrtKernelContext *, size_t *)
        OrtStatus *(*KernelContext_GetOutputCount)(const OrtKernelContext *, size_t *)
        OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *, size_t, const OrtValue **)
        OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)
        void (*ReleaseValue)(OrtValue *)
        void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *)
        OrtStatus *(*CreateOpAttr)(const char *, const void *, int, int, OrtOpAttr **)
        void (*ReleaseOpAttr)(OrtOpAttr *)
        OrtStatus *(*Logger_LogMessage)(const OrtLogger *, int, const char *, const char *, int, const char *)
        OrtStatus *(*ReadOpAttr)(const OrtOpAttr *, int, void *, size_t, size_t *)
        OrtStatus *(*GetValueInfoName)(const OrtValueInfo *, const char **)
        OrtStatus *(*GetValueInfoTypeInfo)(const OrtValueInfo *, const OrtTypeInfo **)
        OrtStatus *(*GetTensorSizeInBytes)(const OrtValue *, size_t *)
        OrtStatus *(*ValueInfo_GetInitializerValue)(const OrtValueInfo *, const OrtValue **)
        OrtStatus *(*ValueInfo_IsConstantInitializer)(const OrtValueInfo *, c_bool *)
        OrtStatus *(*ValueInfo_IsFromOuterScope)(const OrtValueInfo *, c_bool *)
        OrtStatus *(*Graph_GetName)(const OrtGraph *, const char **)
        OrtStatus *(*Graph_GetModelPath)(const OrtGraph *, const char **)
        OrtStatus *(*Graph_GetOnnxIRVersion)(const OrtGraph *, int64_t *)
        OrtStatus *(*Graph_GetNumOperatorSets)(const OrtGraph *, size_t *)
        OrtStatus *(*Graph_GetOperatorSets)(const OrtGraph *, const char **, int64_t *, size_t)
        OrtStatus *(*Graph_GetNumInputs)(const OrtGraph *, size_t *)
        OrtStatus *(*Graph_GetInputs)(const OrtGraph *, const OrtValueInfo **, size_t)
        OrtStatus *(*Graph_GetNumOutputs)(const OrtGraph *, size_t *)
        OrtStatus *(*Graph_GetOutputs)(const OrtGraph *, const OrtValueInfo **, size_t)
        OrtStatus *(*Graph_GetNumInitializers)(const OrtGraph *, size_t *)
        OrtStatus *(*Graph_GetInitializers)(const OrtGraph *, const OrtValueInfo **, size_t)
        OrtStatus *(*Graph_GetNumNodes)(const OrtGraph *, size_t *)
        OrtStatus *(*Graph_GetNodes)(const OrtGraph *, const OrtNode **, size_t)
        OrtStatus *(*Graph_GetParentNode)(const OrtGraph *, const OrtNode **)
        OrtStatus *(*Node_GetName)(const OrtNode *, const char **)
        OrtStatus *(*Node_GetOperatorType)(const OrtNode *, const char **)
        OrtStatus *(*Node_GetDomain)(const OrtNode *, const char **)
        OrtStatus *(*Node_GetNumInputs)(const OrtNode *, size_t *)
        OrtStatus *(*Node_GetInputs)(const OrtNode *, const OrtValueInfo **, size_t)
        OrtStatus *(*Node_GetNumOutputs)(const OrtNode *, size_t *)
        OrtStatus *(*Node_GetOutputs)(const OrtNode *, const OrtValueInfo **, size_t)
        OrtStatus *(*Node_GetNumAttributes)(const OrtNode *, size_t *)
        OrtStatus *(*Node_GetAttributes)(const OrtNode *, const OrtOpAttr **, size_t)
        OrtStatus *(*OpAttr_GetTensorAttributeAsOrtValue)(const OrtOpAttr *, OrtValue **)
        OrtStatus *(*OpAttr_GetType)(const OrtOpAttr *, int *)
        OrtStatus *(*OpAttr_GetName)(const OrtOpAttr *, const char **)
        OrtStatus *(*Node_GetNumSubgraphs)(const OrtNode *, size_t *)
        OrtStatus *(*Node_GetSubgraphs)(const OrtNode *, const OrtGraph **, size_t, const char **)
        OrtStatus *(*GetTensorData)(const OrtValue *, const void **)
        OrtStatus *(*AddNodesToFuse)(
            OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const OrtNodeFusionOptions *)
        OrtStatus *(*CreateNode)(
            const char *, const char *, const char *, const char *const *, size_t, const char *const *, size_t,
            OrtOpAttr **, size_t, OrtNode **)
        OrtStatus *(*CreateProfilingEvent)(
            int, int32_t, int32_t, const char *, int64_t, int64_t, const char *const *, const char *const *, size_t,
            OrtProfilingEvent **)
        void (*ReleaseProfilingEvent)(OrtProfilingEvent *)
        OrtStatus *(*ProfilingEventsContainer_AddEvents)(
            OrtProfilingEventsContainer *, const OrtProfilingEvent *const *, size_t)

    ctypedef struct npu_table_head:
        uint32_t version
        uint32_t size

    ctypedef struct npu_ort_table:
        npu_table_head head
        char *(*devices)(const char **, size_t, size_t *) noexcept
        char *(*open)(
            const npu_ort *, const char *, const char *const *, size_t, const char *const *, const char *const *,
            size_t, const OrtLogger *, void **) noexcept
        char *(*claim)(void *, const OrtGraph *, OrtEpGraphSupportInfo *) noexcept
        char *(*compile)(void *, const OrtGraph *, const OrtNode *, void **, OrtNode **) noexcept
        char *(*compute)(void *, OrtKernelContext *) noexcept
        char *(*set_options)(void *, const char *const *, const char *const *, size_t) noexcept
        char *(*start_profiling)(void *, int64_t) noexcept
        char *(*end_profiling)(void *, OrtProfilingEventsContainer *) noexcept
        char *(*compatibility)(void *, char *, size_t) noexcept
        char *(*validate)(const char *, int *) noexcept
        void (*release)(void *) noexcept

    uint32_t NPU_ORT_VERSION


# Kinds of attributes of ONNX Runtime, with those of ONNX.
cdef enum: INT = 1, INTS, FLOAT, FLOATS, STRING, STRINGS, GRAPH, TENSOR
cdef enum: TENSOR_VALUE = 1
cdef enum: LOG_INFO = 1
cdef enum: KERNEL_EVENT = 2
_KINDS = {INT: 2, INTS: 7, FLOAT: 1, FLOATS: 6, STRING: 3, STRINGS: 8, TENSOR: 4}

# Weights below this many bytes are copied into the message, which is simpler to handle.
cdef size_t SMALL = 4096

_DTYPES = {code: (dtype.storage, dtype.itemsize) for code, dtype in ELEMENT_TYPES.items()}

cdef const npu_ort *ort = NULL


cdef int check(OrtStatus *status) except -1:
    if status != NULL:
        text = ort.GetErrorMessage(status).decode("utf-8", "replace")
        ort.ReleaseStatus(status)
        raise OrtError(text)
    return 0


cdef char *problem(error) noexcept:
    """The text of an exception, for C. An interrupt is raised again in the host's Python after C has returned."""
    try:
        if not isinstance(error, Exception):
            PyErr_SetInterrupt()
        return strdup(providers.described(error).encode("utf-8", "replace"))
    except BaseException:
        return strdup(b"npusim: an error that cannot be described")


cdef str text_of(const char *text):
    return text.decode("utf-8", "replace") if text != NULL else ""


cdef class Pointers:
    """An array of pointers that ONNX Runtime fills in."""

    cdef const void **at
    cdef size_t count

    def __cinit__(self, size_t count):
        self.count = count
        self.at = <const void **>malloc((count + 1) * sizeof(void *))
        if self.at == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.at)


# ---------------------------------------------------------------------------------------------- graphs to messages

cdef str name_of(const OrtValueInfo *value):
    cdef const char *name = NULL
    if value == NULL:
        return ""  # an operand that is left out
    check(ort.GetValueInfoName(value, &name))
    return text_of(name)


cdef describe_value(message, const OrtValueInfo *value):
    """Fill in a ValueInfoProto. One that is no tensor keeps its type open."""
    cdef const OrtTypeInfo *info = NULL
    cdef const OrtTensorTypeAndShapeInfo *tensor = NULL
    cdef int kind = 0, element = 0
    cdef size_t rank = 0, axis
    cdef int64_t *sizes
    cdef const char **symbols
    message.name = name_of(value)
    check(ort.GetValueInfoTypeInfo(value, &info))
    check(ort.GetOnnxTypeFromTypeInfo(info, &kind))
    if kind != TENSOR_VALUE:
        return
    check(ort.CastTypeInfoToTensorInfo(info, &tensor))
    check(ort.GetTensorElementType(tensor, &element))
    check(ort.GetDimensionsCount(tensor, &rank))
    message.type.tensor_type.elem_type = element
    if rank == 0:
        # Before 1.24, a scalar and a tensor of unknown rank look alike.
        if ort.TensorTypeAndShape_HasShape != NULL and ort.TensorTypeAndShape_HasShape(tensor):
            message.type.tensor_type.shape.SetInParent()
        return
    shape = message.type.tensor_type.shape
    cdef Pointers names = Pointers(rank), numbers = Pointers(rank)
    sizes, symbols = <int64_t *>numbers.at, <const char **>names.at
    check(ort.GetDimensions(tensor, sizes, rank))
    check(ort.GetSymbolicDimensions(tensor, symbols, rank))
    for axis in range(rank):
        dim = shape.dim.add()
        if sizes[axis] >= 0:
            dim.dim_value = sizes[axis]
        elif symbols[axis] != NULL and symbols[axis][0] != 0:
            dim.dim_param = text_of(symbols[axis])


cdef type_and_shape(const OrtValue *value):
    """The element type and the shape of a tensor."""
    cdef OrtTensorTypeAndShapeInfo *info = NULL
    cdef int element = 0
    cdef size_t rank = 0, axis
    cdef int64_t sizes[64]
    check(ort.GetTensorTypeAndShape(value, &info))
    try:
        check(ort.GetTensorElementType(info, &element))
        check(ort.GetDimensionsCount(info, &rank))
        if rank > 64:
            raise OrtError(f"a tensor has {rank} dimensions")
        if rank:
            check(ort.GetDimensions(info, sizes, rank))
    finally:
        ort.ReleaseTensorTypeAndShapeInfo(info)
    return element, tuple([sizes[axis] for axis in range(rank)])


cdef describe_tensor(message, const OrtValue *value):
    """Fill in type and shape of a TensorProto. Returns a view of its data, or None if it has no plain data."""
    cdef size_t nbytes = 0
    cdef const void *data = NULL
    element, shape = type_and_shape(value)
    message.data_type = element
    message.dims.extend(shape)
    if element == onnx.TensorProto.STRING:
        return None
    check(ort.GetTensorSizeInBytes(value, &nbytes))
    check(ort.GetTensorData(value, &data))
    return PyMemoryView_FromMemory(<char *>data, nbytes, PyBUF_READ) if nbytes else memoryview(b"")


cdef read_attribute(node, const OrtOpAttr *attribute):
    cdef const char *name = NULL
    cdef int kind = 0
    cdef size_t size = 0, at
    cdef OrtValue *value = NULL
    check(ort.OpAttr_GetName(attribute, &name))
    check(ort.OpAttr_GetType(attribute, &kind))
    if kind == GRAPH:
        return  # read as a subgraph
    if kind not in _KINDS:
        raise OrtError(f"attribute {text_of(name)!r} has the unknown kind {kind}")
    message = node.attribute.add(name=text_of(name), type=_KINDS[kind])
    if kind == TENSOR:
        check(ort.OpAttr_GetTensorAttributeAsOrtValue(attribute, &value))
        try:
            data = describe_tensor(message.t, value)
            if data is not None:
                message.t.raw_data = bytes(data)
        finally:
            ort.ReleaseValue(value)
        return
    # The size is told by a failure.
    cdef OrtStatus *too_short = ort.ReadOpAttr(attribute, kind, NULL, 0, &size)
    if too_short != NULL:
        ort.ReleaseStatus(too_short)
    raw = bytearray(size)
    cdef char *room = raw
    if size:
        check(ort.ReadOpAttr(attribute, kind, room, size, &size))
    if kind == INT:
        message.i = (<int64_t *>room)[0]
    elif kind == FLOAT:
        message.f = (<float *>room)[0]
    elif kind == INTS:
        message.ints.extend([(<int64_t *>room)[at] for at in range(size // 8)])
    elif kind == FLOATS:
        message.floats.extend([(<float *>room)[at] for at in range(size // 4)])
    elif kind == STRING:
        message.s = bytes(raw)
    else:
        message.strings.extend(bytes(raw).removesuffix(b"\0").split(b"\0") if size else ())


cdef read_node(graph, const OrtNode *node, size_t number, set names):
    cdef const char *text = NULL
    cdef size_t count = 0, at
    cdef Pointers found, labels
    message = graph.node.add()
    check(ort.Node_GetOperatorType(node, &text))
    message.op_type = text_of(text)
    check(ort.Node_GetDomain(node, &text))
    message.domain = text_of(text)
    check(ort.Node_GetName(node, &text))
    name = text_of(text) or f"{message.op_type}_{number}"
    while name in names:  # names identify nodes in the reasons of a refusal
        name += "_"
    names.add(name)
    message.name = name
    check(ort.Node_GetNumInputs(node, &count))
    found = Pointers(count)
    if count:
        check(ort.Node_GetInputs(node, <const OrtValueInfo **>found.at, count))
    message.input.extend([name_of(<const OrtValueInfo *>found.at[at]) for at in range(count)])
    check(ort.Node_GetNumOutputs(node, &count))
    found = Pointers(count)
    if count:
        check(ort.Node_GetOutputs(node, <const OrtValueInfo **>found.at, count))
    for at in range(count):
        name = name_of(<const OrtValueInfo *>found.at[at])
        message.output.append(name)
        if name:
            describe_value(graph.value_info.add(), <const OrtValueInfo *>found.at[at])
    check(ort.Node_GetNumAttributes(node, &count))
    found = Pointers(count)
    if count:
        check(ort.Node_GetAttributes(node, <const OrtOpAttr **>found.at, count))
    for at in range(count):
        read_attribute(message, <const OrtOpAttr *>found.at[at])
    check(ort.Node_GetNumSubgraphs(node, &count))
    if count:
        found, labels = Pointers(count), Pointers(count)
        check(ort.Node_GetSubgraphs(node, <const OrtGraph **>found.at, count, <const char **>labels.at))
        for at in range(count):
            attribute = message.attribute.add(name=text_of(<const char *>labels.at[at]), type=onnx.AttributeProto.GRAPH)
            read_graph(attribute.g, <const OrtGraph *>found.at[at], None)


cdef read_graph(message, const OrtGraph *graph, blobs):
    """Fill in a GraphProto. ``blobs``: receives views of large weights by name; None: all are copied, for a graph
    inside a node."""
    cdef const char *text = NULL
    cdef size_t count = 0, at
    cdef c_bool constant
    cdef const OrtValue *value
    cdef Pointers found
    check(ort.Graph_GetName(graph, &text))
    message.name = text_of(text) or "graph"
    check(ort.Graph_GetNumNodes(graph, &count))
    found = Pointers(count)
    if count:
        check(ort.Graph_GetNodes(graph, <const OrtNode **>found.at, count))
    names = set()
    for at in range(count):
        read_node(message, <const OrtNode *>found.at[at], at, names)
    check(ort.Graph_GetNumInitializers(graph, &count))
    found = Pointers(count)
    if count:
        check(ort.Graph_GetInitializers(graph, <const OrtValueInfo **>found.at, count))
    constants = set()
    for at in range(count):
        constant, value = True, NULL
        # The value of one that is an input, too, is only a default, which ONNX Runtime passes as an input.
        check(ort.ValueInfo_IsConstantInitializer(<const OrtValueInfo *>found.at[at], &constant))
        if not constant:
            continue
        check(ort.ValueInfo_GetInitializerValue(<const OrtValueInfo *>found.at[at], &value))
        if value == NULL:
            continue
        tensor = message.initializer.add(name=name_of(<const OrtValueInfo *>found.at[at]))
        data = describe_tensor(tensor, value)
        constants.add(tensor.name)
        if data is None:
            continue
        if blobs is None or len(data) < SMALL:
            tensor.raw_data = bytes(data)
        else:
            blobs[tensor.name] = data
    check(ort.Graph_GetNumInputs(graph, &count))
    found = Pointers(count)
    if count:
        check(ort.Graph_GetInputs(graph, <const OrtValueInfo **>found.at, count))
    for at in range(count):
        if name_of(<const OrtValueInfo *>found.at[at]) not in constants:
            describe_value(message.input.add(), <const OrtValueInfo *>found.at[at])
    check(ort.Graph_GetNumOutputs(graph, &count))
    found = Pointers(count)
    if count:
        check(ort.Graph_GetOutputs(graph, <const OrtValueInfo **>found.at, count))
    for at in range(count):
        describe_value(message.output.add(), <const OrtValueInfo *>found.at[at])


cdef received(const OrtGraph *graph):
    """A graph of ONNX Runtime as a model, whose large weights are views."""
    cdef int64_t version = 0
    cdef size_t count = 0, at
    cdef const char *path = NULL
    proto, blobs = onnx.ModelProto(), {}
    check(ort.Graph_GetOnnxIRVersion(graph, &version))
    proto.ir_version = version if version > 0 else 8
    read_graph(proto.graph, graph, blobs)
    check(ort.Graph_GetNumOperatorSets(graph, &count))
    cdef Pointers domains = Pointers(count), versions = Pointers(count)
    if count:
        check(ort.Graph_GetOperatorSets(graph, <const char **>domains.at, <int64_t *>versions.at, count))
    for at in range(count):
        proto.opset_import.add(domain=text_of(<const char *>domains.at[at]), version=(<int64_t *>versions.at)[at])
    check(ort.Graph_GetModelPath(graph, &path))
    return Received(proto, blobs, text_of(path), ort.TensorTypeAndShape_HasShape == NULL)


# ------------------------------------------------------------------------------------------------------ the table

_kept = []  # strings that C holds


cdef char *devices(const char **configs, size_t room, size_t *count) noexcept with gil:
    try:
        names = [name.encode() for name in providers.offered(room)]
        _kept.append(names)
        count[0] = len(names)
        for at, name in enumerate(names):
            configs[at] = name
        return NULL
    except BaseException as error:
        return problem(error)


cdef bint is_nested(const OrtGraph *graph, Pointers nodes) except -1:
    """Whether a graph is inside a node. Before 1.24 its node is not told for all graphs: one that reads values from
    outside is inside a node, too."""
    cdef const OrtNode *parent = NULL
    cdef size_t count = 0, at, operand
    cdef c_bool outer = False
    cdef Pointers values
    check(ort.Graph_GetParentNode(graph, &parent))
    if parent != NULL or ort.version >= 24:
        return parent != NULL
    for at in range(nodes.count):
        check(ort.Node_GetNumInputs(<const OrtNode *>nodes.at[at], &count))
        values = Pointers(count)
        if count:
            check(ort.Node_GetInputs(<const OrtNode *>nodes.at[at], <const OrtValueInfo **>values.at, count))
        for operand in range(count):
            if values.at[operand] != NULL:
                check(ort.ValueInfo_IsFromOuterScope(<const OrtValueInfo *>values.at[operand], &outer))
                if outer:
                    return True
    return False


cdef dict pairs(const char *const *keys, const char *const *values, size_t count):
    cdef size_t at
    return {text_of(keys[at]): text_of(values[at]) for at in range(count)}


cdef class Log:
    """The log of a session of ONNX Runtime."""

    cdef const OrtLogger *logger

    def __call__(self, str text, int level=LOG_INFO):
        cdef bytes message = text.encode("utf-8", "replace")
        check(ort.Logger_LogMessage(self.logger, level, message, b"npusim", 0, b"npusim"))


cdef char *open(
    const npu_ort *functions, const char *name, const char *const *configs, size_t devices, const char *const *keys,
    const char *const *values, size_t count, const OrtLogger *logger, void **made
) noexcept with gil:
    global ort
    cdef size_t at
    cdef Log log = Log()
    try:
        ort = functions
        log.logger = logger
        names = [text_of(configs[at]) for at in range(devices)]
        provider = providers.opened(text_of(name), names, pairs(keys, values, count), log)
        Py_INCREF(provider)
        made[0] = <void *>provider
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *claim(void *provider, const OrtGraph *graph, OrtEpGraphSupportInfo *support) noexcept with gil:
    """Claims the nodes that the device runs. ONNX Runtime only logs an error of this function and goes on without the
    device, so the error is kept: all nodes are claimed, and compiling them raises it."""
    cdef size_t count = 0, at
    cdef Pointers nodes, chosen
    cdef OrtNodeFusionOptions options
    owner = <object>provider
    try:
        check(ort.Graph_GetNumNodes(graph, &count))
        nodes = Pointers(count)
        if count:
            check(ort.Graph_GetNodes(graph, <const OrtNode **>nodes.at, count))
        if not count or is_nested(graph, nodes):
            return NULL  # a graph inside a node is claimed with the node
        try:
            groups = owner.claim(received(graph))
        except BaseException as error:
            owner.failure, groups = error, [range(count)]
        options.ort_version_supported = ort.version
        options.drop_constant_initializers = True
        for group in groups:
            chosen = Pointers(len(group))
            for at, number in enumerate(group):
                chosen.at[at] = nodes.at[<size_t>number]
            check(ort.AddNodesToFuse(support, <const OrtNode *const *>chosen.at, chosen.count, &options))
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *compile(
    void *provider, const OrtGraph *graph, const OrtNode *fused, void **made, OrtNode **context
) noexcept with gil:
    cdef const char *name = NULL
    owner = <object>provider
    try:
        if owner.failure is not None:
            raise owner.failure
        check(ort.Node_GetName(fused, &name))
        given = received(graph)
        program = owner.compile(given, text_of(name))
        attributes = owner.context_of(program, given.path) if context != NULL else None
        if attributes is not None:
            context[0] = context_node(fused, attributes)
        Py_INCREF(program)
        made[0] = <void *>program
        return NULL
    except BaseException as error:
        return problem(error)


cdef OrtNode *context_node(const OrtNode *fused, attributes) except NULL:
    """A node EPContext in the place of a fused one. ``attributes``: strings and integers by name."""
    cdef Pointers given = Pointers(len(attributes)), ins, outs
    cdef size_t count = 0, at, made = 0
    cdef OrtNode *node = NULL
    cdef const char *name = NULL
    cdef int64_t number
    cdef bytes text
    check(ort.Node_GetName(fused, &name))
    check(ort.Node_GetNumInputs(fused, &count))
    ins = Pointers(count)
    if count:
        check(ort.Node_GetInputs(fused, <const OrtValueInfo **>ins.at, count))
    check(ort.Node_GetNumOutputs(fused, &count))
    outs = Pointers(count)
    if count:
        check(ort.Node_GetOutputs(fused, <const OrtValueInfo **>outs.at, count))
    for at in range(ins.count):
        check(ort.GetValueInfoName(<const OrtValueInfo *>ins.at[at], <const char **>&ins.at[at]))
    for at in range(outs.count):
        check(ort.GetValueInfoName(<const OrtValueInfo *>outs.at[at], <const char **>&outs.at[at]))
    try:
        for key, value in attributes.items():
            label = key.encode()
            if isinstance(value, int):
                number = value
                check(ort.CreateOpAttr(label, &number, 1, INT, <OrtOpAttr **>&given.at[made]))
            else:
                text = value
                check(ort.CreateOpAttr(label, <const char *>text, len(text), STRING, <OrtOpAttr **>&given.at[made]))
            made += 1
        check(ort.CreateNode(
            b"EPContext", b"com.microsoft", name, <const char *const *>ins.at, ins.count,
            <const char *const *>outs.at, outs.count, <OrtOpAttr **>given.at, given.count, &node))
        made = 0  # the node owns them
    finally:
        for at in range(made):
            ort.ReleaseOpAttr(<OrtOpAttr *>given.at[at])
    return node


cdef input_array(const OrtValue *value):
    """A view of a tensor."""
    cdef size_t nbytes = 0
    cdef const void *data = NULL
    element, shape = type_and_shape(value)
    if element not in _DTYPES:
        raise OrtError(f"an input has the element type {element}")
    check(ort.GetTensorSizeInBytes(value, &nbytes))
    if nbytes == 0:
        return np.empty(shape, _DTYPES[element][0])
    check(ort.GetTensorData(value, &data))
    view = PyMemoryView_FromMemory(<char *>data, nbytes, PyBUF_READ)
    return np.frombuffer(view, _DTYPES[element][0]).reshape(shape)


cdef int write_output(OrtKernelContext *kernel, size_t number, array) except -1:
    cdef OrtValue *value = NULL
    cdef void *data = NULL
    cdef size_t room = 0, axis
    cdef int64_t sizes[64]
    cdef const unsigned char[::1] source
    for axis in range(array.ndim):
        sizes[axis] = array.shape[axis]
    check(ort.KernelContext_GetOutput(kernel, number, sizes, array.ndim, &value))
    if value == NULL or not array.size:
        return 0
    check(ort.GetTensorSizeInBytes(value, &room))
    if room != <size_t>array.nbytes:
        raise OrtError(f"output {number} has {room} bytes in ONNX Runtime, and {array.nbytes} here")
    check(ort.GetTensorMutableData(value, &data))
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memcpy(data, &source[0], room)
    return 0


cdef char *compute(void *program, OrtKernelContext *kernel) noexcept with gil:
    cdef size_t count = 0, at
    cdef const OrtValue *value
    owner = <object>program
    try:
        check(ort.KernelContext_GetInputCount(kernel, &count))
        arrays = []
        for at in range(count):
            value = NULL
            check(ort.KernelContext_GetInput(kernel, at, &value))
            arrays.append(input_array(value) if value != NULL else None)
        outputs = owner.run(arrays)
        check(ort.KernelContext_GetOutputCount(kernel, &count))
        if count != <size_t>len(outputs):
            raise OrtError(f"ONNX Runtime takes {count} outputs, the program has {len(outputs)}")
        for at in range(count):
            write_output(kernel, at, outputs[at])
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *set_options(
    void *provider, const char *const *keys, const char *const *values, size_t count
) noexcept with gil:
    try:
        (<object>provider).set_options(pairs(keys, values, count))
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *start_profiling(void *provider, int64_t offset_ns) noexcept with gil:
    try:
        (<object>provider).start_profiling(offset_ns)
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *end_profiling(void *provider, OrtProfilingEventsContainer *events) noexcept with gil:
    cdef OrtProfilingEvent *event
    cdef const char *keys[2]
    cdef const char *values[2]
    cdef const OrtProfilingEvent *all[1]
    keys[0], keys[1] = b"simulated_ps", b"kind"
    try:
        for name, kind, start_us, time_ps in (<object>provider).end_profiling():
            number, label, kind_text = str(time_ps).encode(), name.encode("utf-8", "replace"), kind.encode()
            values[0], values[1] = number, kind_text
            event = NULL
            check(ort.CreateProfilingEvent(
                KERNEL_EVENT, -1, -1, label, start_us, time_ps // 1_000_000, keys, values, 2, &event))
            all[0] = event
            try:
                check(ort.ProfilingEventsContainer_AddEvents(events, all, 1))
            finally:
                ort.ReleaseProfilingEvent(event)
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *compatibility(void *provider, char *text, size_t room) noexcept with gil:
    cdef size_t at
    try:
        found = (<object>provider).compatibility.encode()[: room - 1] + b"\0"
        for at in range(len(found)):
            text[at] = found[at]
        return NULL
    except BaseException as error:
        return problem(error)


cdef char *validate(const char *text, int *verdict) noexcept with gil:
    try:
        verdict[0] = providers.verdict(text_of(text))
        return NULL
    except BaseException as error:
        return problem(error)


cdef void release(void *object_) noexcept with gil:
    Py_DECREF(<object>object_)


cdef npu_ort_table table
table.head.version = NPU_ORT_VERSION
table.head.size = sizeof(npu_ort_table)
table.devices = devices
table.open = open
table.claim = claim
table.compile = compile
table.compute = compute
table.set_options = set_options
table.start_profiling = start_profiling
table.end_profiling = end_profiling
table.compatibility = compatibility
table.validate = validate
table.release = release
TABLE = PyCapsule_New(&table, b"hal.ort._bridge.TABLE", NULL)
