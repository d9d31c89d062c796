#!/usr/bin/env python3
"""report_page_test.py TOOL ROOT [--pictures DIR]: the page of `dckpt report` in headless Chromium.

Two window sizes in both color schemes, clicks through every view: no error on the console, no
request, nothing wider than the window. Names that try to be markup stay text. With --pictures, a
screenshot of every view is written to DIR.
"""
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from headless_browser import Browser, find_browser

VIEWS = "summary sizes owners boxes optimizer load stats differences save arguments".split()
WINDOWS = [(1280, 900), (390, 800)]
SCHEMES = ["light", "dark"]
HOSTILE = ["</script><script>alert(1)</script>", "<!--<script>", "<img src=x onerror=alert(1)>", "\" onmouseover=\"alert(1)",
           "__proto__", "constructor", "javascript:alert(1)", "&lt;b&gt;", "\u202egnp.exe", "\u2066isolate\u2069", "zero\u200bwidth",
           "a\nb\x00c\x1b[31m", "line\u2028separator", "x" * 20000, ".", "..a..", "decoder.layers.0.<b>.weight", "häuser.😀"]


SHAPES = [[], [0], [1], [3, 0, 2], [0, 1 << 40], [1] * 12, [2, 1, 3, 1, 2]]


def report(*words, codes=(0,)):
    done = subprocess.run([tool, "report", *map(str, words)], capture_output=True, text=True, timeout=120)
    if done.returncode not in codes:
        raise AssertionError(f"{words}: exit code {done.returncode}: {done.stderr}")


def golden(name, copy):
    return shutil.copytree(root / "tests/data/checkpoints" / name / "ckpt", folder / copy)


def write_safetensors(path, names, shapes=()):
    """Writes tensors of two elements, and some of other shapes."""
    path.mkdir()
    entries, end = {}, 0
    for name, shape in [(name, [2]) for name in names] + [(str(shape), shape) for shape in shapes]:
        begin, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    values = struct.pack("<2f", 1, 2) * (end // 8 + 1)
    values = values[:end]
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values)
    return path


def make_pages():
    """Name of each page → its file. They have every view, each empty view, and damage."""
    model = golden("mcore-0.16-fully-reshardable-tp2pp2dp2", "model")
    phase = lambda least, most, count: {"seconds": most, "median": (least + most) / 2, "minimum": least, "slowest_rank": 3, "bytes": count}
    (model / "dckpt_report.json").write_text(json.dumps({
        "version": 1, "bytes": 743526, "files": 19, "seconds": 12.451, "plan_cached": False, "why_planned": "first save", "engine": "direct",
        "phases": {"plan": phase(0.031, 0.04, 0), "stage": phase(1.1, 2.3, 743526), "copy": phase(1.9, 2.115, 743526),
                   "write": phase(11.7, 12.203, 743526), "sync": phase(0.9, 1.204, 0), "publish": phase(0.208, 0.208, 0)}}))
    hf = shutil.copytree(root / "tests/data/hf_pairs/qwen2/hf", folder / "hf")
    changed = shutil.copytree(hf, folder / "changed")
    data = bytearray((changed / "model.safetensors").read_bytes())
    data[-1000:] = bytes(1000)
    (changed / "model.safetensors").write_bytes(data)
    damaged = golden("mcore-0.14-flattened-tp2pp2dp2", "damaged")
    (damaged / "__2_0.distcp").unlink()
    os.truncate(damaged / "common.pt", 100)
    unopened = golden("mcore-0.14-moe-ep2", "unopened")
    os.truncate(unopened / ".metadata", 200)
    pages = {
        "model": ([model, "--stats", "--compare", golden("mcore-0.15-fully-reshardable-tp2pp2dp2", "other")], (0,)),
        "hf": ([hf, "--stats", "--compare", changed], (0,)),
        "flattened": ([golden("mcore-0.14-flattened-tp2pp2dp2", "flattened")], (0,)),
        "buckets": ([golden("mcore-0.16-dp-reshardable-tp2pp1dp2", "buckets"), "--stats"], (0,)),
        "damaged": ([damaged, "--stats"], (1,)),
        "unopened": ([unopened], (3, 4, 5)),
        # A comment changes how a browser reads what follows, so that it could hide another mistake.
        "hostile": ([write_safetensors(folder / "hostile", [name for name in HOSTILE if "<!--" not in name]), "--stats"], (0,)),
        "deep": ([write_safetensors(folder / "deep", [f"model.layers.{layer}.w" for layer in range(48)]), "--stats"], (0,)),
        "shapes": ([write_safetensors(folder / "shapes", ["w"], SHAPES), "--stats"], (0,)),
        "comment": ([write_safetensors(folder / "comment", HOSTILE[1:]), "--stats"], (0,))}
    for name, (words, codes) in pages.items():
        report(*words, "-o", folder / f"{name}.html", codes=codes)
    return {name: folder / f"{name}.html" for name in pages}


class Page(unittest.TestCase):
    def open(self, name, size=WINDOWS[0], scheme="light"):
        browser.open(pages[name], *size, scheme)
        self.assertEqual(browser.problems, [], name)

    def tearDown(self):
        self.assertEqual(browser.problems, [])

    def show(self, view):
        browser.run(f"document.getElementById('tab-{view}').click()")
        browser.settle()

    def text(self, selector):
        return browser.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def test_every_view_in_both_sizes_and_schemes(self):
        """Of the first page all, of the others two opposite ones in turn: each has its own windows."""
        windows = [(size, scheme) for size in WINDOWS for scheme in SCHEMES]
        for number, name in enumerate(pages):
            for size, scheme in windows if number == 0 or pictures else [windows[number % 2], windows[3 - number % 2]]:
                with self.subTest(name=name, size=size, scheme=scheme):
                    self.open(name, size, scheme)
                    for view in VIEWS:
                        self.show(view)
                        self.assertGreater(len(self.text(f"#view-{view}")), 40, view)
                        width = browser.run("document.documentElement.scrollWidth")
                        self.assertLessEqual(width, size[0], f"{view} is wider than the window")
                        if pictures:
                            browser.screenshot(pictures / f"{name}-{view}-{size[0]}-{scheme}.png", whole=True)
                    self.assertEqual(browser.problems, [])

    def test_a_click_zooms_and_escape_goes_back(self):
        self.open("model")
        self.show("sizes")
        tile = "document.querySelector('.map button')"
        before = browser.run(f"{tile}.title")
        browser.run(f"{tile}.click()")
        self.assertNotEqual(browser.run(f"{tile}.title"), before)
        browser.key("Escape")
        self.assertEqual(browser.run(f"{tile}.title"), before)
        browser.key("Enter")  # the first tile has the focus
        self.assertNotEqual(browser.run(f"{tile}.title"), before)

    def test_tiles_have_the_area_of_their_bytes(self):
        self.open("model")
        self.show("sizes")
        areas = browser.run("[...document.querySelectorAll('.map button')].map(b => [parseFloat(b.style.width) * parseFloat(b.style.height),"
                            "Number(/([\\d.]+) %/.exec(b.title)[1])])")
        whole = sum(area for area, _ in areas)
        for area, percent in areas:
            self.assertAlmostEqual(100 * area / whole, percent, delta=0.11)

    def test_modules_inside_a_tile_are_all_there_or_counted(self):
        """The areas of the inner tiles would else be those of another model."""
        self.open("deep")
        self.show("sizes")
        shown = browser.run("[...document.querySelectorAll('.map button i')].map(tile => tile.innerText).filter(name => name)")
        self.assertEqual(shown, [f"{layer}.w" for layer in range(48)])
        browser.run("Object.assign(document.querySelector('.map').style, {width: '160px', height: '90px'})")
        browser.settle()
        self.assertRegex(self.text(".map"), r"\d+ more")

    def test_statistics_are_searched_sorted_and_unfolded(self):
        self.open("deep")
        self.show("stats")
        shown = "[...document.querySelectorAll('#view-stats .rows:last-child tbody tr')].filter(row => row.offsetHeight).map(row => row.cells[0].innerText)"
        self.assertEqual(len(browser.run(shown)), 20)
        browser.run("document.querySelector('#view-stats .rows:last-child .more').click()")
        self.assertEqual(len(browser.run(shown)), 49)
        heads = "document.querySelectorAll('#view-stats .rows:last-child th button')"
        browser.run(f"{heads}[0].click()")
        self.assertEqual(browser.run(shown)[:4], ["all weights", "model.layers.0.w", "model.layers.1.w", "model.layers.2.w"])
        browser.run(f"{heads}[0].click()")
        self.assertEqual(browser.run(shown)[0], "model.layers.47.w")
        self.assertEqual(browser.run("document.querySelector('#view-stats .rows:last-child th').ariaSort"), "descending")
        self.type("#view-stats .rows:last-child input", "layers.1 w")
        self.assertEqual(len(browser.run(shown)), 11)  # 1 and 10 to 19
        self.assertRegex(self.text("#view-stats .heat"), r"abs max\n2\n0\n4\n8")  # the number, and layers below the bar

    def test_arrow_keys_read_the_pictures(self):
        self.open("model")
        for view in ("owners", "boxes", "optimizer", "load"):
            self.show(view)
            browser.run(f"document.querySelector('#view-{view} canvas').focus()")
            told = set()
            for _ in range(3):
                browser.key("ArrowRight")
                told.add(self.text(f"#view-{view} .told"))
            self.assertEqual(len(told), 3, f"{view}: {told}")

    def test_arrow_keys_move_between_the_tabs(self):
        self.open("model")
        browser.run("document.getElementById('tab-summary').focus()")
        browser.key("ArrowRight")
        self.assertFalse(browser.run("document.getElementById('view-sizes').hidden"))
        browser.key("ArrowLeft")
        browser.key("ArrowLeft")
        self.assertFalse(browser.run("document.getElementById('view-arguments').hidden"))

    def type(self, selector, words):
        browser.run(f"{{const input = document.querySelector({json.dumps(selector)}); input.value = {json.dumps(words)};"
                    "input.dispatchEvent(new Event('input')); input.focus()}")

    def test_a_search_finds_a_tensor_and_an_argument(self):
        self.open("model")
        self.show("boxes")
        self.type("#view-boxes input", "fc1 exp_avg")
        browser.key("Enter")
        self.assertIn("linear_fc1", self.text("#view-boxes h3"))
        self.show("arguments")
        self.type("#view-arguments input", "num_layers")
        self.assertIn("num_layers", self.text("#view-arguments table"))
        self.type("#view-arguments input", "there is no such thing")
        self.assertIn("0 values", self.text("#view-arguments"))

    def load(self, words):
        self.type("#view-load input", words)
        browser.key("Enter")
        return browser.run("[...document.querySelectorAll('#view-load tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))")

    def test_a_load_reads_what_the_boxes_say(self):
        """Compared with sums over the chunks that `dckpt inspect` lists."""
        listed = subprocess.run([tool, "inspect", folder / "model", "--chunks", "--json"], capture_output=True, text=True, check=True)
        tensors = json.loads(listed.stdout)["tensors"]
        self.open("model")
        self.show("load")
        for axis, ranks in [(0, 1), (0, 3), (1, 2), (2, 5)]:
            expected = []
            for rank in range(ranks):
                wanted, read, chunks = 0, 0, 0
                for tensor in tensors:
                    shape = tensor["shape"]
                    item = tensor["bytes"] // math.prod(shape)
                    begin, end = 0, shape[axis] if axis < len(shape) else 0
                    begin, end = end * rank // ranks, end * (rank + 1) // ranks
                    if axis >= len(shape) and rank > 0 or axis < len(shape) and begin == end:
                        continue
                    for chunk in tensor["chunk_list"]:
                        size, first = math.prod(chunk["sizes"]), chunk["offsets"][axis] if axis < len(shape) else 0
                        extent = chunk["sizes"][axis] if axis < len(shape) else 1
                        shared = min(end, first + extent) - max(begin, first) if axis < len(shape) else extent
                        if shared > 0:
                            wanted += size // extent * shared * item
                            read += size * item
                            chunks += 1
                expected.append([str(rank), f"{read / wanted:.2f} ×", str(chunks)])
            self.assertEqual([[row[0], row[3], row[4]] for row in self.load(f"axis {axis} in {ranks}")], expected)

    def test_a_load_under_the_layout_of_the_save_reads_no_more(self):
        self.open("model")
        self.show("load")
        browser.run("document.querySelector('#view-load input[type=checkbox]').click()")  # without the optimizer
        self.assertEqual({row[3] for row in self.load("TP=2 PP=2 DP=2")}, {"1.00 ×"})
        self.assertNotEqual({row[3] for row in self.load("TP=4 PP=2 DP=1")}, {"1.00 ×"})

    def test_a_layout_that_is_none_is_refused(self):
        self.open("hf")
        self.show("load")
        for wrong in ("", "TP=", "TP=0", "TP=2 XP=3", "axis 0 in 0", "TP=5000", "EP=3 DP=2", "axis -1 in 2"):
            self.assertEqual(self.load(wrong), [], wrong)
            self.assertIn("Not computed", self.text("#view-load .notice"), wrong)

    def test_tensors_of_any_shape_have_boxes(self):
        self.open("shapes")
        self.show("boxes")
        for shape in SHAPES:
            self.type("#view-boxes input", str(shape))
            browser.key("Enter")
            self.assertIn(str(tuple(shape)).replace(",)", ")"), self.text("#view-boxes p"))
            browser.run("document.querySelector('#view-boxes canvas')?.focus()")
            browser.key("ArrowRight")

    def test_names_that_try_to_be_markup_are_text(self):
        for name in ("comment", "hostile"):
            self.open(name)
            for view in VIEWS:
                self.show(view)
            self.assertEqual(browser.run("document.querySelectorAll('img, main script, [onmouseover], [onerror]').length"), 0)
            self.assertEqual(browser.run("document.scripts.length"), 2)
        self.show("stats")
        shown = self.text("#view-stats")
        self.assertIn("</script><script>alert(1)</script>", shown)
        self.assertIn("\\xe2\\x80\\xaegnp.exe", shown)
        self.assertNotIn("\u202e", browser.run("document.body.innerText"))

    def test_what_cannot_be_shown_is_said(self):
        self.open("damaged")
        for words in ("What this page cannot show", "arguments", "__2_0.distcp", "missing"):
            self.assertIn(words, self.text("#view-summary"))
        self.assertIn("Damaged", self.text("#head"))
        self.assertIn("statistics of", self.text("#view-summary"))
        self.show("stats")
        self.assertIn("all weights", self.text("#view-stats"))
        self.open("unopened")
        self.assertIn("Cannot be opened", self.text("#head"))
        self.assertIn("__0_0.distcp", self.text("#view-summary"))

    def test_a_printed_page_has_every_view(self):
        self.open("model", scheme="dark")
        path = folder / "printed.pdf"
        browser.print(path)
        self.assertGreater(path.stat().st_size, 50_000)
        self.assertEqual(browser.run("[...document.querySelectorAll('section')].filter(view => !view.hidden).length"), 1)

    def test_the_policy_of_the_page_stops_other_scripts(self):
        self.open("model")
        browser.run("{const script = document.createElement('script'); script.textContent = 'window.ran = 1'; document.body.append(script)}")
        browser.run("fetch('data.txt').catch(() => {})")
        self.assertIsNone(browser.run("window.ran ?? null"))
        self.assertNotEqual(browser.problems, [])
        browser.problems = []


if __name__ == "__main__":
    pictures = None
    if "--pictures" in sys.argv:
        at = sys.argv.index("--pictures")
        pictures = pathlib.Path(sys.argv[at + 1])
        pictures.mkdir(parents=True, exist_ok=True)
        del sys.argv[at:at + 2]
    root, tool = pathlib.Path(sys.argv.pop(2)).resolve(), str(pathlib.Path(sys.argv.pop(1)).resolve())
    program = find_browser()
    if not program:
        print("skipped: there is no Chromium (apt-get install chromium-headless-shell)")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        pages = make_pages()
        with Browser(program) as browser:
            unittest.main()
