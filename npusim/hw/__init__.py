"""The hardware description (``config``) and the costs of work (``cost``, ``capability``): exact integers, no data."""
