"""Fits numbers of a device description to measured times of layers and networks."""
