"""Measurements of a running server and of single kernels; no part of the product."""
