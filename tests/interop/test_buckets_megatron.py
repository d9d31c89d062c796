"""`convert --optimizer dp_reshardable` lays a model's state, found by its values, into the buckets in which Megatron-Core has it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import megatron_peer as peer
import tool

HERE = pathlib.Path(__file__).parent
NAMES = {"tensor": "tensor_model_parallel_size", "pipeline": "pipeline_model_parallel_size", "expert": "expert_model_parallel_size",
         "virtual": "virtual_pipeline_model_parallel_size", "bucket_size": "ddp_bucket_size"}


class BucketsMegatron(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_laid_out(self, **job):
        saved, made = str(self.folder / "saved"), str(self.folder / "made")
        done = subprocess.run([sys.executable, "-W", "ignore", HERE / "lay_out_gpt.py", json.dumps({**job, "save": saved})], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(done.stderr[-4000:])
        run = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "transformer_impl": "local", "moe_grouped_gemm": 0, "overlap_grad_reduce": int("bucket_size" in job),
               "data_parallel_size": job["ranks"] // job.get("tensor", 1) // job.get("pipeline", 1), **{NAMES[name]: value for name, value in job.items() if name in NAMES}}
        tool.run("convert", saved, made, "--optimizer", "dp_reshardable", *(f"--arg={name}={value}" for name, value in run.items()))
        self.assertEqual(tool.objects(made), tool.objects(saved))
        self.assertEqual(tool.common(made), tool.common(saved))
        own, theirs = peer.load_plain_tensors(made), peer.load_plain_tensors(saved)
        self.assertEqual({key: tensor.shape for key, tensor in own.items()}, {key: tensor.shape for key, tensor in theirs.items()})
        buckets = {key: tensor for key, tensor in own.items() if ".bucket_idx_" in key}
        for key, tensor in buckets.items():
            held = tensor != 0      # the rest is between parameters, where Megatron's memory is undefined
            self.assertTrue(tensor[held].equal(theirs[key][held]), key)
            self.assertGreater(held.sum(), 0.5 * held.numel(), key)
        return buckets

    @classmethod
    def setUpClass(cls):
        peer.join()

    def test_stages_and_tied_embeddings(self):
        self.assert_laid_out(ranks=4, tensor=2, pipeline=2, tied=True, bucket_size=3000)

    def test_chunks_of_a_virtual_pipeline(self):
        self.assert_laid_out(ranks=4, pipeline=2, virtual=2, biases=True, bucket_size=5000)

    def test_experts(self):
        self.assert_laid_out(ranks=4, tensor=2, experts=4, expert=2, bucket_size=3000)


if __name__ == "__main__":
    unittest.main()
