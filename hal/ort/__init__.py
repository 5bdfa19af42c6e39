"""The execution provider of ONNX Runtime: what ``libnpusim-ort.so`` calls.

``_bridge`` reads the structures of ONNX Runtime and calls ``provider``, which decides, compiles and runs. Clients use
:mod:`npusim.ort`.
"""
