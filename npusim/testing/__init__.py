"""Tests of timing: the pytest plugin, assertions that read like requirements, golden timelines."""
