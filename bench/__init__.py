"""Speed and memory of npusim on real networks: ``python -m bench.run_models``."""
