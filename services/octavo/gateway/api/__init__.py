"""The OpenAI-compatible HTTP interface: bodies to calls, deltas to answers."""
