"""The contract between engine and gateway: messages, block hash, limits, validation, errors."""
