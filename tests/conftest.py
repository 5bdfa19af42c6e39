"""Settings shared by all tests."""

from hypothesis import HealthCheck, settings

# No deadline, and no verdict on how fast examples are drawn: the first one of a test may compile kernels' tables or
# import onnx, and machines are shared.
# The same examples in every run: a failure seen once is seen by everybody.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
