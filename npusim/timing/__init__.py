"""How long commands and tiles take: compiled forms of the simulator's rules, shared by compiler and simulator."""
