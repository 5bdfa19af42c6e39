"""Issue order, waits and channels of commands."""
