"""What counts as a secret: variable names, value shapes, paths on disk, sockets. All guards use these."""
