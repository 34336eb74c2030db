"""Measurements beside another trainer: the same model, prompts, order, reward, batch and dtype."""
