"""File-system primitives, each fit to be a small library of its own; they know nothing of weights."""
