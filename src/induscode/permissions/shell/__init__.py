"""Shell commands for permission rules: parsing, known programs, and harmless arguments."""
