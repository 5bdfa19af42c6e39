"""Architecture exploration: many designs and models, what each costs, which are best, and why."""
