"""How a server process is started: how long it may take, with which environment, in whose turn."""
