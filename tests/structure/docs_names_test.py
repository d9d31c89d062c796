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
        self.write("tools/dckpt/render/table.h", "")
        self.write("README.md", "")

    def problems_of(self, text):
        self.write("docs/howto/page.md", text)
        return self.problems("docs_name_files.py")

    def test_files_stems_folders_and_globs_are_found(self):
        self.assertEqual("", self.problems_of(
            "`tools/dckpt/render/table.h:3`, `tools/dckpt/render/table`, `tools/dckpt/`, `tools/*/*/table.h`, "
            "`tests/<layer>/…`, `std/none.h`\n```\n`tools/none.h`\n```\n"))

    def test_a_file_that_is_not_there(self):
        self.assertIn("docs/howto/page.md:3: there is no `tools/dckpt/chair.h`",
                      self.problems_of("text\n\nsee `tools/dckpt/chair.h`"))

    def test_a_stem_that_is_not_there(self):
        self.assertIn("`tools/dckpt/tab`", self.problems_of("`tools/dckpt/tab`"))


class Peers(Tree):
    def setUp(self):
        super().setUp()
        self.write("include/dckpt/dckpt.h", '#include "mapping/box.h"\n')
        self.write("mapping/box.h", '#include "mapping/tensor.h"\n'
                   "// Crate\nstruct Box { bool whole() const; };\n")
        self.write("mapping/tensor.h", "class Tensor;\n")
        self.write("mapping/knot.h", "class Knot;\n")
        self.write("tools/dckpt/commands/command.h", "Command add_remove(ProgramSpec& program);\n")
        self.write("configs/policy/policy_schema.cpp", 'field("verify", …)\n')
        self.write("docs/policies.md", "\n| `load.verify` | `crc` |\n| `load.proof` | |\n")

    def problems_of(self, here):
        self.write("docs/peers.md", f"| there | here | note |\n| --- | --- | --- |\n"
                                    f"| `x` | {here} | `Nothing` |\n")
        return self.problems("docs_name_peers.py")

    def test_names_of_headers_fields_and_commands_are_found(self):
        self.assertEqual("", self.problems_of("`Box`, `Box::whole()`, `load.verify`, `dckpt remove`"))
        self.assertEqual("", self.problems_of("–"))

    def test_made_up_names(self):
        for name in ("Crate", "Box::half()", "Tensor::whole()", "load.verified", "load.proof",
                     "dckpt improve", "some text"):
            self.assertIn(f"docs/peers.md:3: `{name}`: users do not have it",
                          self.problems_of(f"`Box`, `{name}`"))

    def test_names_that_no_installed_header_has(self):
        self.assertIn("users do not have it", self.problems_of("`Knot`"))

    def test_an_empty_column(self):
        self.assertIn("empty column", self.problems_of(""))


if __name__ == "__main__":
    unittest.main()
