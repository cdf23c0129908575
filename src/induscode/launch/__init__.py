"""The command line: its flags, the settings files, and the invocation they make together."""
