"""The errors of the trainer. Each one is a single line that a person can act on."""

from __future__ import annotations


class CoreRunError(Exception):
    """Base of every error that the command line prints as one line, without a traceback."""

    exit_code = 1  # what the command line gives back: something is wrong


class ConfigError(CoreRunError):
    """A setting that cannot be read: wrong file, key or value."""

    exit_code = 2  # bad usage


class RefusedError(CoreRunError):
    """A combination that this trainer does not run.

    reason: one sentence for a person. id: the row of the support matrix, or a short stable name.
    """

    exit_code = 2

    def __init__(self, reason: str, id: str) -> None:
        super().__init__(f"{reason} [{id}]")
        self.reason = reason
        self.id = id


class RuntimeLockError(CoreRunError):
    """An installed package or a private signature of it that is not what the lock says."""

    exit_code = 2


class ContractError(CoreRunError):
    """Something that must hold while training does not hold.

    check: short stable name of the check. detail: what was found, with values.
    """

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.detail = detail


class CheckpointError(CoreRunError):
    """A checkpoint that is incomplete, damaged or made for another run shape."""


class PublicationError(CoreRunError):
    """The serving weights are not the trainer's weights."""
