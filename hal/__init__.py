"""Facades with the interfaces of real clients for the simulated device; each is a sub-package.

Inside this package imports are relative, and nothing in ``npusim`` imports it.
"""
