"""Prepared ImageNet validation images in parcels that fit a size limit, packed without loss.

    python scripts/pack_imagenet.py --imagenet FOLDER --out .local/imagenet_parts --limit 55

Each part is a folder `part-00`, `part-01`, ... with one zip file of at most `--limit` MiB. With all of them in one
folder, that folder is an `--imagenet` of `peppermill paper table1`. The images are decoded into `--checkpoints` first,
as `peppermill paper table1` would decode them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from peppermill.paper.imagenet import listing, pictures
from peppermill.paper.parcels import pack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imagenet", type=Path, required=True)
    parser.add_argument("--labels", type=Path, help="the classes, where the folder is flat")
    parser.add_argument("--out", type=Path, default=Path(".local/imagenet_parts"))
    parser.add_argument("--checkpoints", type=Path, default=Path(".local/paper"))
    parser.add_argument("--limit", type=int, default=55, help="MiB in one part")
    parser.add_argument("--short", type=int, default=256)
    parser.add_argument("--crop", type=int, default=224)
    arguments = parser.parse_args()
    source = listing(arguments.imagenet, 1000, arguments.labels)
    found = pictures(source, arguments.short, arguments.crop, arguments.checkpoints, print)
    for path in pack(found, arguments.short, arguments.out, arguments.limit * 2**20):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
