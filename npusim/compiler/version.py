"""The compiler's version, apart from the compiler: fingerprints need it without the rest."""

COMPILER_VERSION = 12
"""Raise it when the same graph and config compile to other bytes."""
