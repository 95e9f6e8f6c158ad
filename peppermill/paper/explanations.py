"""Why a cell of Table 2 differs from the printed one, where it does: (score, row, column) -> a sentence."""

from __future__ import annotations

EXPLANATIONS: dict[tuple[str, str, str], str] = {}
