#!/usr/bin/env python3
"""subjects.py ROOT: whoever changes a source finds its tests.

A source of more than 150 lines has a test of its name, `agree_test.cpp` for `agree.cpp`, or a line
in tests/subjects.txt, which names the tests that exercise it. The test may be in any folder below
tests; if several sources share the name, in the folder that mirrors the source's. Lines of
tests/subjects.txt that have become wrong or superfluous are reported too.
"""
import collections
import pathlib
import sys

TOPS = ("mapping", "configs", "strategies", "migration", "dist_checkpointing", "transfer", "operations",
        "conformance", "tools")
MAX_LINES = 150
TABLE = "tests/subjects.txt"


def mirrors(source):
    """The folders that may hold the tests of a source's folder; tests/tools has those of all below
    tools/dckpt."""
    folder = source.parent.as_posix()
    if folder.startswith("tools/dckpt"):
        return {"tests/tools", f"tests/{folder.replace('tools/dckpt', 'tools')}"}
    return {f"tests/{folder}"}


class Tree:
    """The sources with their numbers of lines, and the files below tests."""

    def __init__(self, root):
        self.root = root
        self.lines = {}
        for top in TOPS:
            for file in root.glob(f"{top}/**/*.cpp"):
                text = file.read_text(encoding="utf-8")
                self.lines[file.relative_to(root)] = len(text.splitlines())
        self.sharing = collections.Counter(source.stem for source in self.lines)
        self.files = [file.relative_to(root) for suffix in ("cpp", "py")
                      for file in root.glob(f"tests/**/*.{suffix}")]

    def test_of_its_name(self, source):
        """Returns None if there is none."""
        for file in self.files:
            if file.name == f"{source.stem}_test.cpp" and (
                    self.sharing[source.stem] == 1 or file.parent.as_posix() in mirrors(source)):
                return file
        return None

    def files_of(self, test):
        """The files whose path, with or without its suffix, ends in `test`."""
        return sorted(file for file in self.files
                      if f"/{file.as_posix()}".endswith(f"/{test}")
                      or f"/{file.with_suffix('').as_posix()}".endswith(f"/{test}"))


def read_table(root):
    """(number, source, tests) for each line of the table; source is None if it is malformed."""
    text = (root / TABLE).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        source, colon, tests = line.partition(":")
        tests = [test.strip() for test in tests.split(",")]
        valid = colon and source.strip() and all(tests)
        yield number, pathlib.Path(source.strip() + ".cpp") if valid else None, tests


def problems_of_line(tree, source, tests):
    """Says what is wrong with a line of the table."""
    lines = tree.lines.get(source)
    if lines is None:
        yield f"there is no {source}; write where it is now, or remove the line"
    elif lines <= MAX_LINES:
        yield f"{source} has only {lines} lines, so it needs no line here; remove it"
    elif test := tree.test_of_its_name(source):
        yield f"{source} has a test of its name, {test}; remove the line"
    for test in tests:
        files = tree.files_of(test)
        if not files:
            yield f"no test is called {test}; name the one that exercises {source} now"
        elif len(files) > 1:
            yield (f"{test} may be {' or '.join(map(str, files))}; write more of the path, or the "
                   "suffix")


def problems(root):
    tree = Tree(root)
    named = []
    for number, source, tests in read_table(root):
        if source is None:
            yield f"{TABLE}:{number}: the line is not of the form 'SOURCE: TEST, TEST'"
            continue
        for problem in problems_of_line(tree, source, tests):
            yield f"{TABLE}:{number}: {problem}"
        if named and source.with_suffix("").as_posix() <= named[-1]:
            yield f"{TABLE}:{number}: {source} is out of order; sort the lines by source, one each"
        named.append(source.with_suffix("").as_posix())
    for source, lines in sorted(tree.lines.items()):
        if (lines > MAX_LINES and source.with_suffix("").as_posix() not in named
                and not tree.test_of_its_name(source)):
            yield (f"{source} ({lines} lines) has no test of its name: add {source.stem}_test.cpp "
                   f"in {min(mirrors(source), key=len)}, or name the tests that exercise it in "
                   f"{TABLE}")


def main():
    root = pathlib.Path(sys.argv[1])
    if not any(root.glob("mapping/**/*.cpp")):
        sys.exit(f"no sources below '{root}'")
    found = list(problems(root))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
