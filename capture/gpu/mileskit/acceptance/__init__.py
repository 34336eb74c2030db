"""The protocol of `acceptance` on a reader's GPU, its bundle, and the intake of such a bundle."""
