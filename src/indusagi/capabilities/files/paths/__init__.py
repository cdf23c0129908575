"""Path resolution, protection, locks and atomic writes."""
