"""The exact setting's layout: every forward has the same shape, whoever runs it. numpy only.

A pack is documents of any length one after the other. On a grid it is laid out on a fixed number of
rows of a fixed number of tokens, one document a row, padded at the end; the rows stand one after
the other in one Core forward. A token's numbers then come from the same kernels over the same
shapes when it is generated, scored and trained on. Padding follows the document, and attention is
causal, so no document sees it; it is no part of the pack, so no loss and no count knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import RefusedError

if TYPE_CHECKING:
    from .config import RunConfig
    from .packing import Pack


@dataclass(frozen=True, slots=True)
class Grid:
    """So many documents a forward, of so many tokens each."""

    documents: int
    tokens: int

    @classmethod
    def of(cls, config: RunConfig) -> Grid | None:
        """The grid of a run, or None where documents lie one after the other."""
        tokens = config.batch.document_tokens
        return cls(config.batch.pack_tokens // tokens, tokens) if tokens else None

    def check(self, length: int, what: str) -> None:
        """Raise RefusedError ("document-tokens") for a document that a row does not hold."""
        if length > self.tokens:
            raise RefusedError(
                f"{what} has {length} tokens, batch.document_tokens is {self.tokens}: every"
                " document of the exact setting has a row of that size",
                "document-tokens",
            )

    def parts(self, indexes: list[int]) -> list[list[int]]:
        """Packs of samples, in their order: it is also the order in which they were generated."""
        count = self.documents
        return [indexes[start : start + count] for start in range(0, len(indexes), count)]

    def lay(self, pack: Pack) -> tuple[np.ndarray, np.ndarray]:
        """(tokens int64 [documents * tokens], where the pack's `positions` are among them)."""
        tokens = np.zeros((self.documents, self.tokens), np.int64)
        ends = np.cumsum(pack.doc_lens)
        for row, (end, length) in enumerate(zip(ends, pack.doc_lens, strict=True)):
            self.check(length, f"document {row} of a pack")
            tokens[row, :length] = pack.tokens[end - length : end]
        starts = ends - pack.doc_lens
        moved = np.arange(len(ends)) * self.tokens - starts
        return tokens.reshape(-1), pack.positions + moved[pack.document]
