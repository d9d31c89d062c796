#!/usr/bin/env python3
"""docs_name_files.py ROOT: every path of the tree that a page names in backticks exists.

Pages are ROOT/*.md and ROOT/docs/**/*.md. A path begins with a folder of the tree. It may be a
folder, a file, a file without its suffix (`strategies/comm/agree`) or a glob, and may end in a line
number. `…` and <placeholders> are not looked up, and neither are blocks.
"""
import pathlib
import re
import sys

TOPS = ("mapping", "configs", "strategies", "migration", "dist_checkpointing", "transfer",
        "operations", "conformance", "include", "tools", "tests",
        "docs", "examples", "scripts", "cmake", "benchmarks")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:%s)/[^`\s]*)`" % "|".join(TOPS))


def exists(root, path):
    path = re.sub(r":\d+$", "", path).rstrip("/")
    return any(root.glob(path)) or any(root.glob(path + ".*"))


def missing(root):
    """(page, line, path) for each path that is not there."""
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        text = page.read_text(encoding="utf-8")
        prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        for match in PATH.finditer(prose):
            if not re.search("[…<]", match[1]) and not exists(root, match[1]):
                line = prose.count("\n", 0, match.start()) + 1
                yield page.relative_to(root).as_posix(), line, match[1]


def main():
    root = pathlib.Path(sys.argv[1])
    if not (root / "README.md").exists():
        sys.exit(f"no pages below '{root}'")
    found = list(missing(root))
    for page, line, path in found:
        print(f"{page}:{line}: there is no `{path}`; name the file where it is now", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
