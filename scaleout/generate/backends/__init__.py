"""One engine per file, found by its module name: a backend knows no other backend, and none knows text."""
