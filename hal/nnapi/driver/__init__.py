"""The device of the interface, ``IDevice``, and the models that it prepares."""
