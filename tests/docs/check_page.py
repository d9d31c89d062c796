#!/usr/bin/env python3
"""check_page.py --bin FOLDER PAGE: checks every block and link of a page, as README.md says.

--update writes changed output into the page.
"""
import argparse
import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from page import ROOT, blocks, needs_torch, snippet

PREAMBLE = """golden() {
  mkdir -p "$2" && cp -rT "$DCKPT_SOURCE/tests/data/checkpoints/$1/ckpt" "$2" && chmod -R u+w "$2"
}
"""
TIMES_AND_RATES = re.compile(r"\d+(\.\d+)? ?([KMGT]i?B/s|[mµ]?s\b|min\b)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
OPTION = re.compile(r"^(?:option\(|set\()(DCKPT_\w+) \".*$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Failure(Exception):
    """Its text, and the exit code of a program that has failed."""

    def __str__(self):
        return self.args[0]


def run(command, folder, environment):
    done = subprocess.run(command, cwd=folder, env=environment, timeout=300, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode:
        raise Failure(f"exit code {done.returncode}\n{done.stdout}", done.returncode)
    return done.stdout


def shell(text, folder, environment, options="-c"):
    return run(["bash", *options.split(), PREAMBLE + text], folder, environment)


def pattern(expected):
    """What output must look like: a line `…` is any lines, `…` in a line any text of it."""
    parts = []
    for line in expected:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            texts = TIMES_AND_RATES.sub("\0", line).split("…")
            parts.append(".*?".join(re.escape(text) for text in texts) + r"[ ]*\n")
    return re.compile("".join(parts))


def sessions(block):
    """(command, first line of its output, end of it) for each `$ `; a backslash continues it."""
    starts = [number for number, line in enumerate(block.lines) if line.startswith("$ ")]
    if not starts or starts[0] != 0:
        raise Failure("a console block begins with a command, `$ …`")
    for start, end in zip(starts, [*starts[1:], len(block.lines)]):
        output = start + 1
        while block.lines[output - 1].endswith("\\"):
            output += 1
        yield "\n".join(block.lines[start:output])[2:], output, end


def check_console(block, folder, environment, update):
    replaced = []
    for command, start, end in sessions(block):
        printed = shell(command, folder, environment)
        expected = block.lines[start:end]
        if pattern(expected).fullmatch(TIMES_AND_RATES.sub("\0", printed)):
            continue
        actual = [line.rstrip() for line in printed.splitlines()]
        if update and not any("…" in line for line in expected):
            replaced.append((start, end, actual))
            continue
        difference = difflib.unified_diff(expected, actual, "the page", "the output", lineterm="")
        raise Failure("\n".join([f"$ {command}", *difference]))
    for start, end, actual in reversed(replaced):
        block.lines[start:end] = actual
    return bool(replaced)


def check_quotation(block):
    file = ROOT / block.how["from"]
    if "\n" + block.text not in "\n" + file.read_text(encoding="utf-8"):
        raise Failure(f"these lines do not stand in {block.how['from']}")


def check(block, folder, environment, update):
    """What was done, for the counts. True in place of it: the block has changed."""
    if "not checked" in block.how:
        return f"not checked: {block.how['not checked']}"
    if "file" in block.how:
        file = folder / block.how["file"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
    if "from" in block.how:
        check_quotation(block)
    elif block.language in ("sh", "setup"):
        shell(block.text, folder, environment, "-eo pipefail -c")
    elif block.language == "console":
        return True if check_console(block, folder, environment, update) else "console"
    elif block.language == "yaml":
        file = folder / block.how.get("file", ".policy.yaml")
        file.write_text(block.text, encoding="utf-8")
        shell(f"dckpt config check '{file}'", folder, environment)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "cpp" and "in" in block.how:
        try:
            run(["docs_snippets", snippet(block)], folder, environment)
        except Failure as failure:
            if failure.args[1] != 77 or not needs_torch(block):
                raise
            return "not checked: needs libtorch"
    elif "file" not in block.how:
        raise Failure("nothing checks this block: tests/docs/README.md says what can be done")
    return block.language


def anchors(file):
    headings = HEADING.findall(BLOCK.sub("", file.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


def broken_links(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in LINK.findall(CODE.sub("", BLOCK.sub("", text))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or anchor and anchor not in anchors(target):
            yield link


def missing_names():
    """CMake options and Debian packages."""
    named = (ROOT / "docs/building.md").read_text(encoding="utf-8")
    bootstrap = (ROOT / "scripts/bootstrap").read_text(encoding="utf-8")
    for file in (ROOT / "cmake").glob("*.cmake"):
        for option in OPTION.findall(file.read_text(encoding="utf-8")):
            if f"`{option}`" not in named:
                yield option
    for package in re.findall(r"\blib[\w-]+-dev\b", bootstrap):
        if f"`{package}`" not in named:
            yield package


def missing_headers():
    named = (ROOT / "docs/stability.md").read_text(encoding="utf-8")
    for header in sorted((ROOT / "include/dckpt").glob("*.h")):
        if not re.search(rf"[`/]{re.escape(header.name)}`", named):
            yield f"{header.name}, and whether it is stable,"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bin", required=True, type=pathlib.Path)
    arguments.add_argument("--update", action="store_true")
    arguments.add_argument("page")
    options = arguments.parse_args()
    page = options.page
    problems, done, changed = [], [], []
    problems += [f"{page}: the link {link} leads nowhere" for link in broken_links(page)]
    if page == "docs/building.md":
        problems += [f"{page}: {name} is not there" for name in missing_names()]
    if page == "docs/stability.md":
        problems += [f"{page}: {name} is not there" for name in missing_headers()]
    with tempfile.TemporaryDirectory(prefix="dckpt-docs-") as scratch:
        folder = pathlib.Path(scratch)
        path = f"{options.bin.resolve()}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "DCKPT_SOURCE": str(ROOT), "LC_ALL": "C.UTF-8"}
        for block in blocks(page):
            length = len(block.lines)
            try:
                outcome = check(block, folder, environment, options.update)
                if outcome is True:
                    changed.append((block.line, length, block.lines))
                else:
                    done.append((outcome, block.line))
            except (Failure, OSError, ValueError, subprocess.TimeoutExpired) as error:
                problems.append(f"{page}:{block.line}: {error}")
    if changed:
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        for line, length, new in reversed(changed):
            lines[line - 1:line - 1 + length] = new
        (ROOT / page).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for outcome, line in done:
        if outcome.startswith("not checked"):
            print(f"{page}:{line}: {outcome}")
    unchecked = sum(outcome.startswith("not checked") for outcome, _ in done)
    print(f"{page}: {len(done) - unchecked} blocks checked, {unchecked} not checked, "
          f"{len(changed)} updated, {len(problems)} problems")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
