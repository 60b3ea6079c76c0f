"""The gateway: HTTP, templates, tokens, routing, records. Never imports torch."""
