"""``python -m tests.support.removal``."""

import logging
import os
import sys

from hal.onnxifi.settings import BACKENDS_VARIABLE
from tests.support.removal.sweep import main

os.environ[BACKENDS_VARIABLE] = "tiny"
logging.disable(logging.CRITICAL)  # late faults and the drivers' messages are expected
sys.exit(main())
