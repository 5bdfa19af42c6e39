"""Requests that arrive over time: for several models in the rings of a device, or for a decoder."""
