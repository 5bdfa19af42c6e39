"""Models to test npusim with: built from seeds, or shipped with the onnx package. The builders do not import npusim.

Every builder returns an ``onnx.ModelProto`` and is a pure function of its arguments.
"""
