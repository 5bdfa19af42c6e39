"""Executions: synchronous, in the background behind fences, or in a burst; their deadlines and times."""
