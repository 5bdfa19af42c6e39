"""Ways to a device for software outside of this process; each protocol is one file."""
