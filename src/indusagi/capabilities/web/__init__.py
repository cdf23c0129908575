"""The way out to the web: checked addresses, capped bodies, pages as text."""
