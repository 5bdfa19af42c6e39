"""The compiler's version, in a separate module because fingerprints need it without the compiler."""

COMPILER_VERSION = 17
"""Increment it when the same graph and config compile to other bytes."""
