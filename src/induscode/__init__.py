"""The product: the command line, and what a coding session is made of."""
