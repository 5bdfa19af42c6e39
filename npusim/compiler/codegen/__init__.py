"""The order of commands, their waits and DMA channels."""
