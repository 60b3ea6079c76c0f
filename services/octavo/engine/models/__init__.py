"""Models: where they are, what they are made of, and their tensors under one set of names."""
