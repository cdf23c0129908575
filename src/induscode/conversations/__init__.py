"""Sessions: a model, a deck and the permissions between them."""
