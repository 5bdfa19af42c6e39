"""What happened, told to a person (text) or to a program (JSON); see also the Perfetto trace."""
