"""Signing in through real programs: other authors' authorization servers, a browser, a keyring, many processes."""
