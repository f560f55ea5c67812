"""Measures servers side by side over HTTP. Knows nothing of what is inside any of them."""
