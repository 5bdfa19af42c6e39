"""Requests that arrive over time, on a simulated device: several models in its rings, or a decoder with a growing batch."""
