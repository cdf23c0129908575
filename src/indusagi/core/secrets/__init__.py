"""What counts as a secret: names of variables, shapes of values, places on disk, sockets. Every guard reads these."""
