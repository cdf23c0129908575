"""Find files and text in a tree: ripgrep for contents, our own walk for names."""
