"""What tests are made with. The kinds of tests import from here, and nothing from each other.

``graphs``            graphs of the graph language: samples, random ones, those with cycles on record; ways to run them
``onnx_models``       ONNX models: networks, random ones, onnxruntime as the oracle
``onnx_node_tests``   the node tests of the onnx package
``programs``          instruction streams, random ones, jobs of them, a race detector
``nnapi``             models and clients of the NNAPI driver and of its C API
``nnapi_examples``    the NNAPI's conformance examples: reading, running, changing, breaking them
``onnxifi``           models and clients of ONNXIFI, and its contract line by line
``pages``             runs and studies to make pages of, and ``browser``, a headless Chromium that opens them
``carried``           the measured points that the project carries, replayed
``oracle``            slow twins that compute by definition
``removal``           a device that is unplugged, reset or throttled at any moment, through every interface
``fuzz``              damaged calls for the C libraries, damaged models and program files
``warm``              a Python that has imported already what takes long, for tests that start programs
``examples``          numbers of examples that grow with the profile
``c_programs``        clients in C, and ``c_compiler`` for them
"""
