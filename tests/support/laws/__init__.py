"""Laws about compiled programs: relations between the times of layers, networks and devices."""
