#!/usr/bin/env python3
"""check_page_test.py FOLDER: check_page.py notices mistakes. FOLDER holds the built programs."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class CheckPage(unittest.TestCase):
    def problems(self, text):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text(text, encoding="utf-8")
            command = [sys.executable, HERE / "check_page.py", "--bin", programs, page]
            done = subprocess.run(command, capture_output=True, text=True)
            return done.stderr if done.returncode else ""

    def test_a_sound_page_has_no_problems(self):
        self.assertEqual(self.problems(
            "# Title\n[here](#title)\n```sh\ntrue\n```\n"
            "```console\n$ echo took 2.5 s; seq 3\ntook 1 s\n…\n3\n```\n"
            "<!-- not checked: a grammar -->\n```\na := b\n```\n```yaml\nversion: 1\n```\n"), "")

    def test_a_command_that_fails(self):
        self.assertIn("exit code 1", self.problems("```sh\nfalse\ntrue\n```\n"))

    def test_other_output(self):
        self.assertIn("-three\n+3", self.problems("```console\n$ echo 3\nthree\n```\n"))

    def test_more_output(self):
        self.assertIn("+4", self.problems("```console\n$ seq 3 4\n3\n```\n"))

    def test_a_policy_with_a_mistake(self):
        self.assertIn("sav", self.problems("```yaml\nversion: 1\nsav: {}\n```\n"))

    def test_a_quotation_that_is_none(self):
        text = "<!-- from: README.md -->\n```cpp\nint nowhere;\n```\n"
        self.assertIn("do not stand", self.problems(text))

    def test_cpp_that_is_not_built(self):
        self.assertNotEqual("", self.problems("<!-- in: training -->\n```cpp\nthrow 3;\n```\n"))

    def test_a_block_that_nothing_checks(self):
        self.assertIn("nothing checks", self.problems("```\ntext\n```\n"))

    def test_a_broken_link(self):
        self.assertIn("leads nowhere", self.problems("[there](there.md)\n"))
        self.assertIn("leads nowhere", self.problems("# Title\n[there](#there)\n"))

    def test_a_comment_with_a_slip(self):
        self.assertIn("does not know", self.problems("<!-- form: README.md -->\n```\ntext\n```\n"))


if __name__ == "__main__":
    programs = sys.argv.pop()
    unittest.main()
