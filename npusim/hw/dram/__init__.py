"""DRAM models: one file per kind; a new file with a class ``Dram`` is a new kind."""
