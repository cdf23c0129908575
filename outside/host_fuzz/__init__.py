"""Random requests against `indus serve --http --auth`: the gateway lives, every request gets a status, no traceback."""
