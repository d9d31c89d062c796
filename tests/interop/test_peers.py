"""docs/peers.md leads from every class and function of the peers' planners and strategies to ours."""

import ast
import importlib.util
import pathlib
import re
import unittest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/peers.md"
MODULES = [
    *("torch.distributed.checkpoint." + name for name in
      ("default_planner", "planner", "planner_helpers", "_dedup_save_plans")),
    *("megatron.core.dist_checkpointing.strategies." + name for name in
      ("torch", "base", "common", "fully_parallel", "async_utils", "filesystem_async",
       "state_dict_saver", "checkpointable", "cached_metadata_filesystem_reader")),
]


def names_of(module):
    """Its classes, functions and methods, without those that Python calls; nothing is imported."""
    package, *path = module.split(".")
    folder = importlib.util.find_spec(package).submodule_search_locations[0]
    file = pathlib.Path(folder, *path).with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else []
        for named in (node, *inside):
            if isinstance(named, (ast.ClassDef, ast.FunctionDef)):
                if not named.name.startswith("__"):
                    yield named.name


class Peers(unittest.TestCase):
    def test_every_name_is_on_the_page(self):
        rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines()
                if line.startswith("|")]
        listed = {word for row in rows for word in re.findall(r"\w+", row)}
        for module in MODULES:
            with self.subTest(module):
                self.assertEqual([name for name in names_of(module) if name not in listed], [])


if __name__ == "__main__":
    unittest.main()
