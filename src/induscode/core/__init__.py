"""Types that all parts of the product share."""
