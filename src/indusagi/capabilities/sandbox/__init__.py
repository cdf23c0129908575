"""The sandboxes of commands and servers, and the environment of commands."""
