"""The arithmetic of instructions, compiled. ``npusim._core`` exports it."""
