"""Executions: synchronous, in the background after fences, or in a burst; their deadlines and times."""
