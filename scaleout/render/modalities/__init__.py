"""One module for each kind of media, found by its name. They know files and processors, not requests, prompts or HTTP."""
