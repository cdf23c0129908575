"""The guarded HTTP client of everything we fetch: what it may reach, how it connects, how much it reads."""
