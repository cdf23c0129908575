"""Planning of edits: matching, splicing, diffs and checks."""
