#!/usr/bin/env python3
"""snippets.py FOLDER: writes the C++ blocks of all pages, in their surroundings, as functions that
snippets_main.cpp calls: core.cpp, and torch.cpp where torch tensors are in them."""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
from page import blocks, needs_torch, pages, snippet, surroundings

INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


def main(folder):
    found = {"core": {}, "torch": {}}  # name → the function, of each file
    for page in pages():
        for block in blocks(page):
            if block.language == "cpp" and "in" in block.how:
                name, place = snippet(block), f"{page}:{block.line}"
                code = f'#line {block.line} "{page}"\n{block.text}#line 1 "around {place}"\n'
                function = surroundings(block).replace("SNIPPET", name).replace("BLOCK\n", code)
                found["torch" if needs_torch(block) else "core"][name] = function
    for unit, functions in found.items():
        includes = dict.fromkeys(INCLUDE.findall("".join(functions.values())))
        entries = "".join(f'    {{"{name}", {name}}},\n' for name in functions)
        text = f"""{"".join(includes)}
#include "snippets_main.h"

{INCLUDE.sub("", "".join(functions.values()))}
std::map<std::string, void (*)()> {unit}_snippets() {{
  return {{
{entries}  }};
}}
"""
        file = pathlib.Path(folder) / f"{unit}.cpp"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
