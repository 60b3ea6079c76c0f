"""The operator: turns InferenceServices into engine pods and tells how they are."""
