#!/usr/bin/env python3
"""layers.py notices includes that point up, circles of folders, and edges that are named inside."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).with_name("layers.py")


class Layers(unittest.TestCase):
    def expect(self, files, problem):
        with tempfile.TemporaryDirectory() as folder:
            for path, includes in files.items():
                file = pathlib.Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("".join(f"#include {each}\n" for each in includes))
            done = subprocess.run([sys.executable, "-B", CHECK, folder], capture_output=True,
                                  text=True)
        self.assertEqual(1 if problem else 0, done.returncode)
        self.assertIn(problem, done.stderr)

    def test_includes_that_point_down(self):
        self.expect({"mapping/base/error.h": ["<string>"],
                     "dist_checkpointing/open/open.cpp": ['"mapping/base/error.h"']}, "")

    def test_an_include_that_points_up(self):
        self.expect({"mapping/base/error.h": ['"mapping/state/value.h"']},
                    "mapping/base/error.h (mapping/base) must not include mapping/state/value.h")

    def test_a_job_knows_no_formats_maps_or_operations(self):
        for other in ("migration/maps/map.h", "strategies/zarr/writer.h", "configs/maps/key_map.h",
                      "operations/inspect/inspect.h"):
            self.expect({"dist_checkpointing/load/load.cpp": [f'"{other}"']},
                        f"must not include {other}")
        self.expect({"dist_checkpointing/open/open.cpp":
                     ['"strategies/formats/safetensors/index.h"']}, "is in dckpt::core")

    def test_folders_that_include_each_other(self):
        self.expect({"tools/dckpt/commands/a/x.h": ['"tools/dckpt/commands/b/y.h"'],
                     "tools/dckpt/commands/b/y.h": [],
                     "tools/dckpt/commands/b/z.h": ['"tools/dckpt/commands/a/x.h"']},
                    "folders include each other: tools/dckpt/commands/a → tools/dckpt/commands/b")

    def test_an_edge_that_is_named_inside(self):
        self.expect({"mapping/state/tensor.h": ["<ATen/ATen.h>"]}, "includes libtorch")
        self.expect({"strategies/comm/threads.cpp": ["<mpi.h>"]}, "includes MPI")
        self.expect({"operations/inspect/x.cpp": ["<filesystem>"]}, "goes past Location")

    def test_a_folder_on_no_floor(self):
        self.expect({"mapping/attic/old.h": []}, "mapping/attic/old.h is on no floor")

    def test_nothing_to_check(self):
        self.expect({}, "there are no sources")


if __name__ == "__main__":
    unittest.main()
