"""`make mutants`: change one place of `src` at a time, and check that a test notices."""
