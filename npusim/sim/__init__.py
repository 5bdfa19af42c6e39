"""The machine as a discrete-event simulation: memories, links, sequencer, units. The only package that imports
SimPy."""
