"""The fenced blocks of a Markdown page, and the comments that say how to check them (README.md)."""
import hashlib
import pathlib
import re
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^```(\w*)\s*$")
COMMENT = re.compile(r"^<!-- (from|in|file|not checked): (.+?) -->$")


@dataclass
class Block:
    language: str  # "setup" for the shell lines of a setup comment
    line: int      # of its first line of text, from 1
    lines: list
    how: dict = field(default_factory=dict)

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)


def surroundings(block):
    """What a C++ block is compiled in."""
    return (ROOT / "tests/docs/surroundings" / f"{block.how['in']}.cpp").read_text(encoding="utf-8")


def needs_torch(block):
    return "<dckpt/torch.h>" in surroundings(block)


def snippet(block):
    """The name of a C++ block in its surroundings: the same as long as neither changes."""
    return "snippet_" + hashlib.sha256((block.text + surroundings(block)).encode()).hexdigest()[:16]


def pages():
    patterns = ["*.md", "docs/**/*.md", "examples/*/README.md", "benchmarks/README.md"]
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


def blocks(page):
    """The blocks of a page, from top to bottom."""
    result, how, block, closing = [], {}, None, None
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if block is not None:
            if line == closing:
                result.append(block)
                block, how = None, {}
            else:
                block.lines.append(line)
        elif line == "<!-- setup":
            block, closing = Block("setup", number + 1, []), "-->"
        elif match := FENCE.match(line):
            block, closing = Block(match[1], number + 1, [], how), "```"
        elif match := COMMENT.match(line):
            how[match[1]] = match[2]
        elif line.startswith("<!--"):
            raise SystemExit(f"{page}:{number}: tests/docs/README.md does not know this comment")
        elif line.strip() and how:
            raise SystemExit(f"{page}:{number}: a block must follow the comment above")
    if block is not None:
        raise SystemExit(f"{page}:{block.line}: the block does not end")
    return result
