"""Memory of a run before it starts."""
