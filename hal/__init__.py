"""Facades that give the simulated device the interfaces real clients know; each is a sub-package.

Inside this package imports are relative, and nothing in ``npusim`` imports it.
"""
