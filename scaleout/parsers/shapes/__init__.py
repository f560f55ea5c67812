"""How an engine is made to write a family's calls: shapes of calls as structural tags. Knows no tokens and no requests."""
