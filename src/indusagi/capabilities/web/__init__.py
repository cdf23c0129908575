"""Web access: vetted addresses, size-limited bodies, pages as text."""
