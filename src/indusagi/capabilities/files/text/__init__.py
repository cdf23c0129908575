"""Text decoding, lines, statistics and display."""
