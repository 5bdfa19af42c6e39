"""What the hardware is (``config``) and what work costs on it (``cost``, ``capability``): pure integers, no data."""
