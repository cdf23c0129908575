"""The page's views, which turn a gateway's data into HTML."""
