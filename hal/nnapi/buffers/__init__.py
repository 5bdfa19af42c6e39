"""Memory of the device that a client asks for: IBuffer, what it may be used for, and who uses it."""
