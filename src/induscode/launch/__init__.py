"""From the words of a command line to one value that says what is wanted."""
