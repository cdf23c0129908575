"""Work in a process of our own: how it is started, asked and held to limits."""
