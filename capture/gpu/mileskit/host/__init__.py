"""Docker, the checks of a host, and starting guarded runs."""
