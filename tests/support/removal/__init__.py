"""A device that is unplugged, reset or throttled at any moment of a run, through every interface.

``sweep``   moments, faults and outcomes; a program: ``python -m tests.support.removal``
``plays``   runs of five small models through the driver, Session and Executor
``doors``   the same through the NNAPI, ONNXIFI and both C libraries
"""
