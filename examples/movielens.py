"""The MovieLens example, in preparation."""
