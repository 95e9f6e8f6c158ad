"""Table 1 as printed: T*, sigma*, and the scores of network, temperature scaling and PEP; ECE and error in percent."""

from __future__ import annotations

COLUMNS = {
    "nll": ("network", "temperature", "pep"),
    "brier": ("network", "temperature", "pep"),
    "ece": ("network", "temperature", "pep"),
    "error": ("network", "pep"),
}

_NUMBERS: dict[str, str] = {
    "DenseNet121": "1.10 1.94e-3  1.030 1.018 0.997  0.357 0.356 0.349  3.47 1.52 2.03  25.73 25.13",
    "DenseNet169": "1.23 2.90e-3  1.035 1.007 0.940  0.354 0.350 0.331  5.47 1.75 2.35  25.31 23.74",
    "InceptionV3": "0.91 1.94e-3  0.994 0.975 0.950  0.328 0.328 0.317  1.80 4.19 2.46  22.96 22.26",
    "ResNet50": "1.19 2.60e-3  1.084 1.057 1.023  0.365 0.362 0.350  5.08 1.97 2.94  26.09 25.18",
    "VGG16": "1.09 1.84e-3  1.199 1.193 1.164  0.399 0.399 0.391  2.52 2.08 1.64  29.39 28.83",
    "VGG19": "1.09 1.03e-3  1.176 1.171 1.165  0.394 0.394 0.391  4.77 4.50 4.48  28.99 28.75",
}
NETWORKS = tuple(_NUMBERS)


def printed_fit(network: str) -> tuple[float, float]:
    """T* and sigma*."""
    first, second = _NUMBERS[network].split()[:2]
    return float(first), float(second)


def printed_score(network: str, score: str, column: str) -> float:
    """One cell of the printed table."""
    cells = [(name, method) for name, methods in COLUMNS.items() for method in methods]
    return float(_NUMBERS[network].split()[2 + cells.index((score, column))])
