"""GRPO on released OLMo-core, with its contracts checked while it runs.

Importing this package imports neither torch nor Core; the modules that need them import them.
"""
