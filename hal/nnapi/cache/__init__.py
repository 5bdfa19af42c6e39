"""The compilation cache: prepared models in files that the client keeps."""
