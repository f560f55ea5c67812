"""Token ids in, token ids out: this package knows no text, templates, tools or HTTP."""
