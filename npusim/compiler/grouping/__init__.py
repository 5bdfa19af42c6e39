"""Which operators are computed together."""
