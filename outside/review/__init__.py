"""The review on public sets of attacks and of real servers."""
