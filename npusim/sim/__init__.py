"""The machine as discrete events: memories, bandwidth, sequencer, units. The only package that imports SimPy."""
