"""Device memory of clients: IBuffer, its roles and its users."""
