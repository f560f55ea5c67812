"""One file per model family, each a `FORMAT` made of data. They know nothing of each other; a file is found by its name."""
