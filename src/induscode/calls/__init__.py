"""Records of calls: each call of a tool is one row, written in the background, shown by `indus calls`."""
