"""Finding files and text in a tree: ripgrep where there is one, our own walk elsewhere."""
