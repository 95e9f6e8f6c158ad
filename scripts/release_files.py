"""What is built for a release: `python scripts/release_files.py FOLDER [URL]`.

Copies the files of the last commit to FOLDER. PyPI shows the README alone, where links between files lead nowhere: with
the URL of the repository, its links lead to the files of this version there, and pyproject.toml names the addresses of
code, issues, changes and pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]


def main(folder: str, repository: str = "") -> None:
    repository = repository.rstrip("/")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    Path(folder).mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    if not repository:
        return
    readme, project = Path(folder, "README.md"), Path(folder, "pyproject.toml")
    settings = project.read_text(encoding="utf-8")
    version = tomllib.loads(settings)["project"]["version"]
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), repository, version), encoding="utf-8")
    settings = settings.replace("[project.urls]\n", f"[project.urls]\n{addresses(repository)}")
    project.write_text(settings, encoding="utf-8")


def absolute(text: str, repository: str, version: str) -> str:
    """Links to files of the repository, as addresses of the tag of this version; pictures, as their bytes."""
    inside = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")
    return inside.sub(
        lambda link: f"{link[1]}[{link[2]}]({repository}/{'raw' if link[1] else 'blob'}/v{version}/{link[3]})", text
    )


def addresses(repository: str) -> str:
    """Rows of [project.urls]."""
    owner, _, name = urlsplit(repository).path.strip("/").partition("/")
    pages = {"Documentation": f"https://{owner}.github.io/{name}/", "Source": repository}
    pages |= {"Issues": f"{repository}/issues", "Changes": f"{repository}/blob/main/CHANGELOG.md"}
    return "".join(f'{label} = "{address}"\n' for label, address in pages.items())


if __name__ == "__main__":
    main(*sys.argv[1:])
