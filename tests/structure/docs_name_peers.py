#!/usr/bin/env python3
"""docs_name_peers.py ROOT: the names in the column "here" of docs/peers.md exist.

`Class::member`, `function()` and other identifiers must be in one header of the tree, outside of
comments; `save.io.fsync` must be a field of policies, and `dckpt remove` a command of the tool.
"""
import pathlib
import re
import sys

TOPS = ("mapping", "configs", "strategies", "dist_checkpointing", "include")
COMMENT = re.compile(r"//.*")
FIELD = re.compile(r"^(save|load|retention)\.[a-z_.]+$")
IDENTIFIER = re.compile(r"^[A-Za-z_]\w*(::[A-Za-z_]\w*)*(\(\))?$")


def headers(root):
    """The set of words of each header."""
    for top in TOPS:
        for file in root.glob(f"{top}/**/*.h"):
            text = COMMENT.sub("", file.read_text(encoding="utf-8"))
            yield frozenset(re.findall(r"[A-Za-z_]\w*", text))


def rows(page):
    """(line, cells) of the tables whose second column is called "here"."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif len(cells) > 1 and cells[1] == "here":
            inside = True
        elif inside and not set(line) <= set("|-: "):
            yield number, cells


def exists(root, words, name):
    if FIELD.match(name):
        listed = (root / "docs/policies.md").read_text(encoding="utf-8")
        schema = (root / "configs/policy_schema.cpp").read_text(encoding="utf-8")
        return f"\n| `{name}" in listed and f'"{name.split(".")[-1]}"' in schema
    if name.startswith("dckpt "):
        return f"add_{name[6:]}(" in (root / "tools/dckpt/command.h").read_text(encoding="utf-8")
    parts = set(re.findall(r"\w+", name))
    return bool(IDENTIFIER.match(name)) and any(parts <= header for header in words)


def missing(root):
    """(line, name) for each name that is not there."""
    words = list(headers(root))
    for line, cells in rows(root / "docs/peers.md"):
        for name in re.findall(r"`([^`]*)`", cells[1]):
            if not exists(root, words, name):
                yield line, name
        if not cells[0].strip() or not cells[1].strip():
            yield line, "an empty column"


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(missing(root))
    if not list(rows(root / "docs/peers.md")):
        sys.exit("docs/peers.md has no table with a column 'here'")
    for line, name in found:
        print(f"docs/peers.md:{line}: there is no `{name}` in the headers, the schema of policies "
              "or the tool; write what it is called now", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
