"""Measure what the project promises about speed: `python -m bench`.

Every promise is a ratio of two things measured in turns in the same run, so that it holds on any
machine. A subject is a module with a tuple `ROWS`; `bench.rows` puts them together.
"""
