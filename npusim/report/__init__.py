"""Reports of runs as text, JSON, HTML and Perfetto traces."""
