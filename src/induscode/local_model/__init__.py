"""A model on this machine: weights fetched after a person's consent, served by a process while a session lasts."""
