"""Support code for the tests. Every kind of test imports from here, and they import nothing from each other.

``graphs``            graphs: samples, random ones, those with recorded cycles; ways to run them
``onnx_models``       ONNX models: networks, random ones, onnxruntime as the oracle
``onnx_node_tests``   the node tests of the onnx package
``programs``          instruction streams, random ones, jobs made of them, a race detector
``nnapi``             models and clients of the NNAPI driver and of its C API
``nnapi_examples``    the NNAPI conformance examples: reading, running, changing and breaking them
``onnxifi``           models and clients of ONNXIFI, and its contract line by line
``pages``             runs and studies to make pages of, and ``browser``, a headless Chromium that opens them
``carried``           the measured points shipped with the project, replayed
``oracle``            slow reference implementations that follow the definitions
``removal``           a device that is unplugged, reset or throttled at any moment, through every interface
``fuzz``              damaged calls for the C libraries, damaged models and program files
``warm``              a Python process with slow imports already done, for tests that start programs
``examples``          numbers of examples that grow with the profile
``c_programs``        clients in C, and ``c_compiler`` to build them
"""
