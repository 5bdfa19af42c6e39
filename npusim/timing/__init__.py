"""The time of commands and tiles: compiled forms of the simulator's rules, shared by compiler and simulator."""
