"""Tests; a package so that they can share models and samples by name."""
