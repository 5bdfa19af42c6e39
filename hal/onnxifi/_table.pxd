from ._interface cimport npu_onnxifi_engine

cdef npu_onnxifi_engine TABLE
