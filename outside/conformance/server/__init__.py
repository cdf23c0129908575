"""A server with everything that the conformance suite calls by name, in both revisions."""
