"""Settings shared by all tests."""

from hypothesis import settings

# No deadline: the first example of a test may compile kernels' tables or import onnx, and machines are shared.
# The same examples in every run: a failure seen once is seen by everybody.
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")
