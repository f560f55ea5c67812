"""Other servers as engines: their wires, their health, and who gets which request. Knows no text but one to compare tokenizers with."""
