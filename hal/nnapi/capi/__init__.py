"""The engine behind ``libneuralnetworks.so``: the NNAPI C API over the driver of the simulated devices.

The C library (``hal/abi/neuralnetworks.c``) passes every call on as a name and 64-bit words. ``entry`` converts words
to objects and errors to result codes, the ``functions_*`` modules define parameters and effects of each function, and
the other modules are the objects behind the handles: models, compilations, executions, events, memories.
"""
