"""Do two commits give the same bits? Every method is fitted with the code before and the code after.

The ``fits.py`` of each commit runs in a copy of its tree, so names and settings may differ between them; digests of
results with the same name in both are compared. Ends with an error if any differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FITS = Path("workflows") / "bits" / "fits.py"


def digests(tree: Path) -> dict[str, str]:
    """What the code in a tree gives."""
    done = subprocess.run(
        [sys.executable, str(tree / FITS)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def digests_of_commit(commit: str) -> dict[str, str]:
    """What the code of a commit gives."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], cwd=ROOT, check=True)
        try:
            return digests(tree)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> None:
    """Compare and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", help="another one; default: the tree as it is")
    arguments = parser.parse_args()
    before = digests_of_commit(arguments.before)
    after = digests(ROOT) if arguments.after is None else digests_of_commit(arguments.after)
    common = [name for name in before if name in after]
    differing = [name for name in common if before[name] != after[name]]
    for name in sorted(before.keys() ^ after.keys()):
        print(f"only {'before' if name in before else 'after'}: {name}")
    for name in differing:
        print(f"other bits: {name}")
    print(f"{len(common) - len(differing)} of {len(common)} results have the same bits")
    if differing or not common:
        sys.exit(1)


if __name__ == "__main__":
    main()
