"""Models that judge npusim: built from seeds, or shipped with the onnx package; no builder imports npusim.

Every builder returns an ``onnx.ModelProto`` and is a pure function of its arguments.
"""
