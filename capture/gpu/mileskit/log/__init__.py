"""From the bytes of a Miles log to typed events."""
