"""A program for each framework: one conversation with the scripted model."""
