"""The corpus for the review of definitions: attacks and the definitions of real servers, split in half."""
