"""What tools know about files: where a path leads, how text is written, how it is changed."""
