#!/usr/bin/env python3
"""docs_name_peers.py ROOT: the names in the column "here" of docs/peers.md can be called.

`Class::member`, `function()` and other identifiers must be in one header that users have, outside
of comments: one of include/dckpt, or one that these include. `save.io.fsync` must be a field of policies, and
`dckpt remove` a command of the tool.
"""
import pathlib
import re
import sys

COMMENT = re.compile(r"//.*")
INCLUDE = re.compile(r'#include "([^"]+)"')
FIELD = re.compile(r"^(save|load|retention)\.[a-z_.]+$")
IDENTIFIER = re.compile(r"^[A-Za-z_]\w*(::[A-Za-z_]\w*)*(\(\))?$")


def of_users(root):
    """The headers that an installation brings."""
    waiting = sorted(root.glob("include/dckpt/*.h"))
    reached = set(waiting)
    while waiting:
        for name in INCLUDE.findall(waiting.pop().read_text(encoding="utf-8")):
            file = root / name
            if file.exists() and file not in reached:
                reached.add(file)
                waiting.append(file)
    return reached


def words(files):
    """The set of words of each header."""
    return [frozenset(re.findall(r"[A-Za-z_]\w*", COMMENT.sub("", file.read_text(encoding="utf-8"))))
            for file in files]


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


def exists(root, headers, name):
    if FIELD.match(name):
        listed = (root / "docs/policies.md").read_text(encoding="utf-8")
        schema = (root / "configs/policy/policy_schema.cpp").read_text(encoding="utf-8")
        return f"\n| `{name}" in listed and f'"{name.split(".")[-1]}"' in schema
    if name.startswith("dckpt "):
        return f"add_{name[6:]}(" in (root / "tools/dckpt/commands/command.h").read_text(encoding="utf-8")
    parts = set(re.findall(r"\w+", name))
    return bool(IDENTIFIER.match(name)) and any(parts <= header for header in headers)


def wrong(root):
    """(line, name, what is wrong) for each name that is not where the page says."""
    installed = words(of_users(root))
    for line, cells in rows(root / "docs/peers.md"):
        for name in re.findall(r"`([^`]*)`", cells[1]):
            if not exists(root, installed, name):
                yield line, name, ("users do not have it: no installed header, policy or command "
                                   "does; write what they can call")
        if not cells[0].strip() or not cells[1].strip():
            yield line, "", "an empty column"


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(wrong(root))
    if not list(rows(root / "docs/peers.md")):
        sys.exit("docs/peers.md has no table with a column 'here'")
    for line, name, problem in found:
        print(f"docs/peers.md:{line}: `{name}`: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
