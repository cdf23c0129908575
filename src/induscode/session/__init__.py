"""The session: what a model and a person do with a deck."""
