"""What importing hal.onnxifi needs, and how it works."""

from __future__ import annotations

import subprocess
import sys

import hal.onnxifi
from hal.onnxifi.status import RETURNS

WITHOUT_ONNX = """
import sys
class NoOnnx:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnx":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoOnnx())
flags = sys.getdlopenflags()
try:
    import hal.onnxifi
except ImportError as error:
    print(error)
assert sys.getdlopenflags() == flags
"""


def test_without_onnx_it_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ONNX], capture_output=True, text=True, check=True)
    assert done.stdout == "ONNXIFI needs the onnx package to read models: pip install 'npusim[onnx]'\n"


WITHOUT_ANOTHER = WITHOUT_ONNX.replace('"onnx"', '"google"')


def test_what_else_is_missing_is_named():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ANOTHER], capture_output=True, text=True, check=True)
    assert done.stdout == "No module named 'google'\n"


def test_the_public_names_are_there_and_include_the_fifteen_functions():
    assert set(RETURNS) <= set(hal.onnxifi.__all__)
    assert all(hasattr(hal.onnxifi, name) for name in hal.onnxifi.__all__)
    assert len(RETURNS) == 15
