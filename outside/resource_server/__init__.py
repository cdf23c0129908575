"""`indus serve --auth` with the tokens of another author's authorization server."""
