"""A headless Chromium, driven over its debugging pipe: no package besides the browser is needed."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]


def find_browser():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. `problems` are errors on the console, exceptions and requests since the last open()."""

    def __init__(self, program):
        to_browser, self.send_end = os.pipe()
        self.receive_end, from_browser = os.pipe()
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

        def connect():
            read, write = os.dup(to_browser), os.dup(from_browser)  # above 4, as 3 and 4 may be taken
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.last = 0
        self.session = None
        self.loaded = False
        self.problems = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.send_end)
        os.close(self.receive_end)
        self.profile.cleanup()

    def call(self, method, **parameters):
        self.last += 1
        number = self.last
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") != number:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def receive(self):
        while b"\0" not in self.buffer:
            data = os.read(self.receive_end, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        method, of = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            details = of["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {of['args']}")
        elif method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {of['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            url = of["request"]["url"]
            if url.split("#")[0] != self.url and not url.startswith("data:"):
                self.problems.append(f"request: {url}")
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {of['message']}")
            self.call("Page.handleJavaScriptDialog", accept=False)

    def open(self, path, width=1280, height=900, scheme="light"):
        """Opens a file. Returns the seconds until it was loaded."""
        self.url = path.resolve().as_uri()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url="about:blank")
        self.run("1")
        self.problems, self.loaded = [], False
        start = time.monotonic()
        self.call("Page.navigate", url=self.url)
        while not self.loaded:
            self.note(self.receive())
        return time.monotonic() - start

    def run(self, script):
        """Returns the value of an expression, awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"].get("exception", {}).get("description")))
        return result["result"].get("value")

    def settle(self):
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def key(self, name):
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name],
                      **({"text": "\r"} if name == "Enter" and kind == "keyDown" else {}))

    def move_to(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, whole=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                         **({"clip": {**self.size(), "x": 0, "y": 0, "scale": 1}} if whole else {}))
        path.write_bytes(base64.b64decode(shot["data"]))

    def size(self):
        return self.run("({width: innerWidth, height: document.documentElement.scrollHeight})")

    def print(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
