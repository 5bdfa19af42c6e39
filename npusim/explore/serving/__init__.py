"""Load tests: requests that arrive over time, for several models on the rings of a device or for a decoder."""
