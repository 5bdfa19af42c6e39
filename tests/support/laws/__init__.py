"""Laws of what the compiler makes: relations between the times of layers, networks and devices."""
