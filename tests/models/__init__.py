"""Models that judge npusim: built from seeds, or shipped with the onnx package; nothing here imports npusim.

Every builder returns an ``onnx.ModelProto`` and is a pure function of its arguments.
"""
