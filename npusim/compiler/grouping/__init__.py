"""Which operators are computed as one."""
