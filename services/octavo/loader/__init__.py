"""The loader: brings a model's files to a volume, whole or not at all."""
