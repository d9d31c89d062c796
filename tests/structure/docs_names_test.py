#!/usr/bin/env python3
"""The checks of names in the documentation notice mistakes."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Tree(unittest.TestCase):
    """A small tree, and what a check says of it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def problems(self, check):
        command = [sys.executable, "-B", HERE / check, self.root]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stderr if done.returncode else ""


class Files(Tree):
    def setUp(self):
        super().setUp()
        self.write("tools/dckpt/table.h", "")
        self.write("README.md", "")

    def problems_of(self, text):
        self.write("docs/howto/page.md", text)
        return self.problems("docs_name_files.py")

    def test_files_stems_folders_and_globs_are_found(self):
        self.assertEqual("", self.problems_of(
            "`tools/dckpt/table.h:3`, `tools/dckpt/table`, `tools/dckpt/`, `tools/*/table.h`, "
            "`tests/<layer>/…`, `std/none.h`\n```\n`tools/none.h`\n```\n"))

    def test_a_file_that_is_not_there(self):
        self.assertIn("docs/howto/page.md:3: there is no `tools/dckpt/chair.h`",
                      self.problems_of("text\n\nsee `tools/dckpt/chair.h`"))

    def test_a_stem_that_is_not_there(self):
        self.assertIn("`tools/dckpt/tab`", self.problems_of("`tools/dckpt/tab`"))


if __name__ == "__main__":
    unittest.main()
