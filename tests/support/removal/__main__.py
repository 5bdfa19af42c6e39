"""``python -m tests.support.removal``."""

import logging
import os
import sys

from hal.onnxifi.settings import BACKENDS_VARIABLE
from tests.support.removal.sweep import main

os.environ[BACKENDS_VARIABLE] = "tiny"
logging.disable(logging.CRITICAL)  # faults that a run was over before, and what drivers say about the others
sys.exit(main())
