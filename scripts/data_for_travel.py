"""Copy the data sets of a folder in parts that fit a size limit, for a machine that can be reached in small parcels.

    python scripts/data_for_travel.py --data FOLDER --out .local/parcels --limit 60

Each parcel is a folder `parcel-00`, `parcel-01`, ... of at most `--limit` MiB, with the files of FOLDER under their own
names: unpacked into one place, they are FOLDER again.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path


def parcels(files: list[Path], limit: int) -> list[list[Path]]:
    """The files in order, in groups of at most `limit` bytes each."""
    groups: list[list[Path]] = [[]]
    for file in files:
        if groups[-1] and sum(one.stat().st_size for one in groups[-1]) + file.stat().st_size > limit:
            groups.append([])
        groups[-1].append(file)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=60, help="MiB in one parcel")
    parser.add_argument("--sets", default="mnist,fashion-mnist,cifar10,cifar100")
    arguments = parser.parse_args()
    files = [path for name in arguments.sets.split(",") for path in sorted((arguments.data / name).iterdir())]
    for number, group in enumerate(parcels(files, arguments.limit * 2**20)):
        for file in group:
            target = arguments.out / f"parcel-{number:02d}" / file.relative_to(arguments.data)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        print(f"parcel-{number:02d}: {len(group)} files")


if __name__ == "__main__":
    main()
