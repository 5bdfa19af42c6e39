"""Measured points replayed on the models that run networks: how far off is each prediction."""
