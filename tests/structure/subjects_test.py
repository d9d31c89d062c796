#!/usr/bin/env python3
"""The check that tests find their subject notices mistakes."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().with_name("subjects.py")
LONG = "\n" * 151
SHORT = "\n" * 150


class Subjects(unittest.TestCase):
    """A tree with one long source, which a test of another name exercises."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("mapping/planning/balance.cpp", LONG)
        self.write("tests/mapping/plan_test.cpp")
        self.write("tests/subjects.txt", "# A comment.\nmapping/planning/balance: plan_test\n")

    def write(self, path, text=""):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def expect(self, problem):
        command = [sys.executable, "-B", CHECK, self.root]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(1 if problem else 0, done.returncode)
        self.assertIn(problem, done.stderr)
        self.assertEqual(1 if problem else 0, done.stderr.count("\n"), done.stderr)

    def test_lines_of_the_table_and_tests_of_the_same_name_are_found(self):
        self.write("tools/dckpt/render/table.cpp", LONG)
        self.write("tests/elsewhere/table_test.cpp")
        self.write("configs/short.cpp", SHORT)
        self.expect("")

    def test_a_source_without_a_test(self):
        self.write("tools/dckpt/render/table.cpp", LONG)
        self.expect("tools/dckpt/render/table.cpp (151 lines) has no test of its name: "
                    "add table_test.cpp in tests/tools")

    def test_a_test_of_another_source_of_the_same_name(self):
        self.write("strategies/zarr/writer.cpp", LONG)
        self.write("strategies/safetensors/writer.cpp", LONG)
        self.write("tests/strategies/safetensors/writer_test.cpp")
        self.expect("strategies/zarr/writer.cpp (151 lines) has no test of its name")

    def test_a_source_that_is_gone(self):
        (self.root / "mapping/planning/balance.cpp").unlink()
        self.write("mapping/planning/short.cpp", SHORT)
        self.expect("tests/subjects.txt:2: there is no mapping/planning/balance.cpp")

    def test_a_source_that_is_short_by_now(self):
        self.write("mapping/planning/balance.cpp", SHORT)
        self.expect("tests/subjects.txt:2: mapping/planning/balance.cpp has only 150 lines")

    def test_a_source_that_has_a_test_of_its_name_by_now(self):
        self.write("tests/mapping/planning/balance_test.cpp")
        self.expect("tests/subjects.txt:2: mapping/planning/balance.cpp has a test of its name, "
                    "tests/mapping/planning/balance_test.cpp")

    def test_a_test_that_is_gone(self):
        (self.root / "tests/mapping/plan_test.cpp").unlink()
        self.expect("tests/subjects.txt:2: no test is called plan_test")

    def test_names_that_several_tests_share(self):
        self.write("tests/configs/plan_test.py")
        self.expect("plan_test may be tests/configs/plan_test.py or tests/mapping/plan_test.cpp")
        for name in ("mapping/plan_test", "plan_test.cpp"):
            self.write("tests/subjects.txt", f"mapping/planning/balance: {name}\n")
            self.expect("")

    def test_lines_without_tests_and_out_of_order(self):
        self.write("configs/rows.cpp", LONG)
        line = "mapping/planning/balance: plan_test\n"
        self.write("tests/subjects.txt", line + "configs/rows: plan_test\n")
        self.expect("tests/subjects.txt:2: configs/rows.cpp is out of order")
        self.write("tests/subjects.txt", "configs/rows: plan_test\n" + line + line)
        self.expect("tests/subjects.txt:3: mapping/planning/balance.cpp is out of order")
        self.write("tests/subjects.txt", "configs/rows: plan_test\n" + line + "x: y,\n")
        self.expect("tests/subjects.txt:3: the line is not of the form")


if __name__ == "__main__":
    unittest.main()
