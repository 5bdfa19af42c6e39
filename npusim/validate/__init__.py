"""Validation: measured points are replayed on the models, and the errors of the predictions are reported."""
