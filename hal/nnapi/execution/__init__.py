"""Executions: one at once, in the background behind fences, or in a burst; their deadlines and their times."""
