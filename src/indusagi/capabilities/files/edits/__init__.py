"""Plan edits: matching, splicing, diffs and checks."""
