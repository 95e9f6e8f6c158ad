"""Tables 1 and 2 as printed; ECE and error in percent."""

from __future__ import annotations

#: Table 2 by score, row and column: (mean, plus-minus).
COLUMNS = ("baseline", "pep", "temperature", "mc_dropout", "swa", "deep_ensembles")
WITHOUT_SWA = tuple(column for column in COLUMNS if column != "swa")  # whose settings are unpublished

Cell = tuple[float, float]

_TABLE2: dict[str, dict[str, str]] = {
    "nll": {
        "mnist-mlp": "0.096 0.01  0.079 0.01  0.074 0.01  0.094 0.00  0.067 0.00  0.044 0.00",
        "mnist-cnn": "0.036 0.00  0.034 0.00  0.032 0.00  0.031 0.00  0.028 0.00  0.021 0.00",
        "fashion-mnist": "0.360 0.01  0.275 0.01  0.271 0.01  0.218 0.01  0.277 0.01  0.198 0.00",
        "cifar10": "1.063 0.03  0.982 0.02  0.956 0.02  0.798 0.01  0.827 0.01  0.709 0.00",
        "cifar100": "2.685 0.03  2.651 0.03  2.606 0.03  2.435 0.03  2.314 0.02  2.159 0.01",
    },
    "brier": {
        "mnist-mlp": "0.037 0.00  0.035 0.00  0.035 0.00  0.040 0.00  0.032 0.00  0.020 0.00",
        "mnist-cnn": "0.016 0.00  0.015 0.00  0.015 0.00  0.014 0.00  0.013 0.00  0.010 0.00",
        "fashion-mnist": "0.137 0.01  0.127 0.01  0.126 0.00  0.111 0.00  0.121 0.00  0.096 0.00",
        "cifar10": "0.469 0.01  0.450 0.01  0.447 0.01  0.381 0.01  0.373 0.00  0.335 0.00",
        "cifar100": "0.795 0.01  0.786 0.01  0.782 0.01  0.768 0.01  0.723 0.00  0.695 0.00",
    },
    "ece": {
        "mnist-mlp": "1.324 0.16  0.528 0.12  0.415 0.10  2.569 0.17  0.536 0.08  0.839 0.08",
        "mnist-cnn": "0.517 0.07  0.366 0.08  0.259 0.06  0.832 0.06  0.282 0.04  0.287 0.05",
        "fashion-mnist": "5.269 0.22  1.784 0.54  1.098 0.18  1.466 0.30  3.988 0.11  0.942 0.13",
        "cifar10": "11.718 0.72  4.599 0.82  1.318 0.26  7.109 0.62  8.655 0.29  8.867 0.23",
        "cifar100": "9.780 0.69  5.535 0.50  2.012 0.31  12.608 0.59  7.180 0.48  11.954 0.29",
    },
    "error": {
        "mnist-mlp": "2.264 0.22  2.286 0.24  2.264 0.22  2.452 0.14  2.082 0.10  1.285 0.05",
        "mnist-cnn": "0.990 0.13  0.990 0.12  0.990 0.13  0.842 0.06  0.868 0.06  0.659 0.03",
        "fashion-mnist": "8.420 0.32  8.522 0.34  8.420 0.32  7.692 0.34  7.734 0.11  6.508 0.10",
        "cifar10": "33.023 0.68  32.949 0.74  33.023 0.68  27.207 0.66  26.004 0.36  22.880 0.21",
        "cifar100": "64.843 0.69  64.789 0.69  64.843 0.69  60.772 0.58  58.092 0.42  53.917 0.30",
    },
}


#: Cells as the tables of the authors' notebook have them: rounded to two digits their plus-minus is 0.00.
UNROUNDED: dict[tuple[str, str, str], Cell] = {
    ("nll", "mnist-cnn", "baseline"): (0.03607, 0.00439),
    ("nll", "mnist-cnn", "pep"): (0.03366, 0.00419),
    ("nll", "mnist-cnn", "temperature"): (0.03199, 0.00380),
    ("nll", "mnist-cnn", "mc_dropout"): (0.03130, 0.00138),
    ("brier", "mnist-cnn", "baseline"): (0.01569, 0.00193),
    ("brier", "mnist-cnn", "pep"): (0.01538, 0.00186),
    ("brier", "mnist-cnn", "temperature"): (0.01514, 0.00186),
    ("brier", "mnist-cnn", "mc_dropout"): (0.01379, 0.00066),
}


#: T and sigma* of the authors' networks as their notebooks show them: the mean and the range, if they are known.
NOTEBOOKS: dict[str, dict[str, tuple[float | None, tuple[float, float] | None]]] = {
    "mnist-mlp": {"temperature": (1.839, None), "sigma": (0.0642, (0.052, 0.074))},
    "mnist-cnn": {"temperature": (1.497, (1.381, 1.604)), "sigma": (0.01517, (0.004102, 0.02082))},
    "cifar10": {"temperature": (None, None), "sigma": (None, (0.018, 0.027))},
}


def printed(score: str, row: str, column: str) -> Cell:
    """One cell of the printed table."""
    numbers = [float(number) for number in _TABLE2[score][row].split()]
    place = 2 * COLUMNS.index(column)
    return numbers[place], numbers[place + 1]


def tolerance(cell: Cell) -> float:
    """How far a number may lie from the printed one: its plus-minus or 3 % of it, whichever is larger."""
    return max(cell[1], 0.03 * cell[0])


def inside(ours: float, cell: Cell) -> bool:
    """Whether our number agrees with the printed one."""
    return abs(ours - cell[0]) <= tolerance(cell) + 1e-12


def inside_before_rounding(ours: float, cell: Cell) -> bool:
    """Whether it agrees with what the printed numbers may have been: 0.010 stands for 0.0095 to 0.0105, and a
    plus-minus of 0.00 for anything below 0.005."""
    return abs(ours - cell[0]) <= max(cell[1] + 0.005, 0.03 * cell[0]) + 0.0005 + 1e-12


#: Table 1: T*, sigma*, and the scores of network, temperature scaling and PEP.
TABLE1_COLUMNS = {
    "nll": ("network", "temperature", "pep"),
    "brier": ("network", "temperature", "pep"),
    "ece": ("network", "temperature", "pep"),
    "error": ("network", "pep"),
}

_TABLE1: dict[str, str] = {
    "DenseNet121": "1.10 1.94e-3  1.030 1.018 0.997  0.357 0.356 0.349  3.47 1.52 2.03  25.73 25.13",
    "DenseNet169": "1.23 2.90e-3  1.035 1.007 0.940  0.354 0.350 0.331  5.47 1.75 2.35  25.31 23.74",
    "InceptionV3": "0.91 1.94e-3  0.994 0.975 0.950  0.328 0.328 0.317  1.80 4.19 2.46  22.96 22.26",
    "ResNet50": "1.19 2.60e-3  1.084 1.057 1.023  0.365 0.362 0.350  5.08 1.97 2.94  26.09 25.18",
    "VGG16": "1.09 1.84e-3  1.199 1.193 1.164  0.399 0.399 0.391  2.52 2.08 1.64  29.39 28.83",
    "VGG19": "1.09 1.03e-3  1.176 1.171 1.165  0.394 0.394 0.391  4.77 4.50 4.48  28.99 28.75",
}
TABLE1_NETWORKS = tuple(_TABLE1)


def printed_fit(network: str) -> tuple[float, float]:
    """T* and sigma*."""
    first, second = _TABLE1[network].split()[:2]
    return float(first), float(second)


def printed_score(network: str, score: str, column: str) -> float:
    """One cell of the printed table."""
    cells = [(name, method) for name, methods in TABLE1_COLUMNS.items() for method in methods]
    return float(_TABLE1[network].split()[2 + cells.index((score, column))])
