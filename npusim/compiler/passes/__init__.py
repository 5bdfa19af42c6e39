"""Graph to graph: rewriting for the device."""
