"""What was found by running OLMo-core and the trainer on a processor: one program a finding.

Each module here measures one thing and is deterministic; its record is the JSON file of the same
name. `python -m capture.core.findings` runs them, writes the records or compares with them.
`record` reads and compares without torch.
"""
