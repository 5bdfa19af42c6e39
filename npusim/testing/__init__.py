"""Timing tests: the pytest plugin, assertions, golden timelines."""
