"""File handling for tools: path resolution, text decoding and editing."""
