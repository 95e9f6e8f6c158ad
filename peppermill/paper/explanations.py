"""Why cells of Table 2 differ from the printed ones, where they do: by row, a sentence."""

from __future__ import annotations

EXPLANATIONS: dict[str, str] = {
    "mnist-cnn": "perhaps fewer of the authors' networks ended in a jump of the training loss: see below",
}
