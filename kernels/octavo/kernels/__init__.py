"""Operations of the engine, one folder each: `reference` specifies, `cpu` is native code.

Knows tensors only: no model, no request, no scheduler. Importing this package imports no torch.
"""
