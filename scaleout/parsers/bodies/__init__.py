"""Readers of call regions, one file per way of writing a call. They know no family: what a marker looks like is told to them."""
