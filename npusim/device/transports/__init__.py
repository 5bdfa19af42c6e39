"""Transports of a device to software in other processes; one file per protocol."""
