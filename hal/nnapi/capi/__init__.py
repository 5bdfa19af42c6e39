"""The engine behind ``libneuralnetworks.so``: the NNAPI C API over the driver of the simulated devices.

The C library (``hal/abi/neuralnetworks.c``) hands every call on as a name and a row of 64-bit words. ``entry`` turns
words into objects and errors into result codes, the ``functions_*`` modules say what each function takes and does, the
other modules are the objects behind the handles: models, compilations, executions, events, memories.
"""
