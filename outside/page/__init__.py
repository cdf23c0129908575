"""`make page`: the page in a real browser."""
