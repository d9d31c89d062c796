"""The plans of test_plans_torch.py against NeMo Automodel's backport of torch's planners, as its wheel has it."""

import importlib
import os
import pathlib
import sys
import types

import test_plans_torch


def backport():
    """Its module, without the packages around it, which import what planners do not need."""
    root = pathlib.Path(os.environ["DCKPT_AUTOMODEL"])
    for name in ("nemo_automodel", "nemo_automodel.components", "nemo_automodel.components.checkpoint"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root / name.replace(".", "/"))]
    return importlib.import_module("nemo_automodel.components.checkpoint._backports.default_planner")


class Plans(test_plans_torch.Plans):
    @classmethod
    def setUpClass(cls):
        theirs = backport()
        test_plans_torch.DefaultSavePlanner = theirs.DefaultSavePlanner
        test_plans_torch.DefaultLoadPlanner = theirs.DefaultLoadPlanner
        test_plans_torch.SAVES = {world: count // 4 for world, count in test_plans_torch.SAVES.items()}
        test_plans_torch.PATHS = {world: count // 4 for world, count in test_plans_torch.PATHS.items()}
        test_plans_torch.LOADS //= 4
        super().setUpClass()
