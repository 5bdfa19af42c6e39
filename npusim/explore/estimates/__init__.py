"""The fast tier of exploration, in parts: designs as arrays, prices over them, tilings, layers, homes of values."""
