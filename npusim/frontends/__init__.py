"""Model formats: each turns a file of its kind into a :class:`npusim.graph.Graph`."""
