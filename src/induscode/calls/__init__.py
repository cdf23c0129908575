"""Call records: each tool call is one row, written in the background and shown by `indus calls`."""
