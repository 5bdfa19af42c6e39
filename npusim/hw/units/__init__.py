"""Cost models of compute units: one file per kind, named ``<unit>_<kind>.py``; a new file is a new kind."""
