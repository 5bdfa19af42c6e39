"""Graph to instruction stream, for one device."""
