"""The product: the command line, and what a coding session is made of."""

DISTRIBUTION = "indus-deck"
"""Which distribution this package is from; another one on PyPI has a package of the same name."""
