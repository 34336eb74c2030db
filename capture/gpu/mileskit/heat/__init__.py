"""GPU samples, and pausing a hot run."""
