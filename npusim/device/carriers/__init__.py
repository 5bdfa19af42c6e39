"""What carries a device to software outside of this process: one protocol, one module."""
