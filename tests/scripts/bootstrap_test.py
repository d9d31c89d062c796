"""bootstrap_test.py ROOT BUILD: scripts/bootstrap installs everything that the tests of ROOT use,
and that was used to build them in BUILD.

A package counts if the list names it, if a named package depends on it, or if every Debian system
has it: that this machine has it proves nothing."""
import ast
import functools
import re
import subprocess
import sys
import unittest
from pathlib import Path

# What a Debian system has that somebody cloned this project on, beyond what none is without.
BARE = {"ca-certificates", "git"}
# Fetched by the test that needs it.
OPTIONAL = {"debootstrap"}
# Where tests name the programs that they run. Those that CMake looks for are in its cache.
PROGRAMS = [re.compile(pattern) for pattern in (
    r"(?:\bcommand -v |\bfor program in )((?:[\w+.-]+[ ;])+)", r'has_shell\("([\w.-]+)"\)',
    r'std::system\("([\w.-]+) ', r'subprocess\.\w+\(\["([\w.-]+)"')]

ROOT, BUILD = Path(sys.argv[1]), Path(sys.argv[2])


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def names_in(packages):
    """The names in a list of packages with versions, architectures and spaces."""
    return [re.split(r"[ (:]", part.strip())[0] for part in packages if part.strip()]


@functools.cache
def installed():
    """{package: ([names it provides], [names it depends on], whether every system has it)}"""
    fields = "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\t${Essential} ${Priority}\n"
    packages = {}
    for line in output_of("dpkg-query", "-W", "-f", fields).splitlines():
        name, provides, depends, kind = line.split("\t")
        packages[name] = (names_in(provides.split(",")), names_in(re.split("[,|]", depends)),
                          kind.startswith("yes") or kind.endswith("required"))
    return packages


def closure(named):
    """Those of `named` that are installed, and what they bring along."""
    provided = {}
    for package, (provides, _, _) in installed().items():
        for name in [package, *provides]:
            provided.setdefault(name, []).append(package)
    found, waiting = set(), list(named)
    while waiting:
        for package in provided.get(waiting.pop(), []):
            if package not in found:
                found.add(package)
                waiting += installed()[package][1]
    return found


@functools.cache
def owners():
    """{file: package}"""
    found = {}
    for path in Path("/var/lib/dpkg/info").glob("*.list"):
        for file in path.read_text().splitlines():
            found[file] = path.name.removesuffix(".list").split(":")[0]
    return found


def owner(file):
    for path in (file, Path(file).resolve()):  # /bin is a link, and programs link to alternatives
        for name in (str(path), str(path).removeprefix("/usr")):
            if name in owners():
                return owners()[name]
    return None


def programs_of_tests():
    """{program: the file that runs it}"""
    found = {}
    for file in [*ROOT.glob("tests/**/*"), *ROOT.glob("scripts/*")]:
        if file.suffix not in {"", ".sh", ".py", ".cpp", ".h"} or not file.is_file():
            continue
        if "data" in file.parts or file.samefile(__file__):
            continue
        text = file.read_text(errors="replace")
        for pattern in PROGRAMS:
            for word in re.split("[ ;]", " ".join(pattern.findall(text))):
                if word and word not in OPTIONAL:
                    found[word] = file.relative_to(ROOT)
    return found


@functools.cache
def used_files():
    """What CMake found, what the compiler read, and the libraries that the programs load: {file: a
    reason}"""
    found = {}
    cache = (BUILD / "CMakeCache.txt").read_text()
    for name, path in re.findall(r"^([^#/\n]*):FILEPATH=(/usr/.+)$", cache, re.MULTILINE):
        found[path] = f"the build found it ({name})"
    for line in output_of("ninja", "-C", BUILD, "-t", "deps").splitlines():
        if line.startswith("    /usr/"):
            found[line.strip()] = "a source of the tests includes it"
    for program in sorted(BUILD.glob("bin/*")):
        loaded = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for path in re.findall(r"=> (/(?:usr|lib)\S*)", loaded):
            found[path] = f"{program.name} loads it"
    return found


def missing(named):
    """One sentence for each file of a package that is used and that `named` does not install."""
    everywhere = {name for name, (_, _, always) in installed().items() if always}
    packages = closure({*named, *BARE, *everywhere})
    problems = []
    for program, file in programs_of_tests().items():
        asked = f"type -t {program}; type -P {program} || true"
        kind, _, path = output_of("bash", "-c", asked).partition("\n")
        package = owner(path.strip()) if path else None
        if kind != "builtin" and package not in packages:
            place = package or "no installed package"
            problems.append(f"{file} runs {program}, which is in {place}")
    for file, reason in used_files().items():
        package = owner(file)
        if package and package not in packages:
            problems.append(f"{file} is in {package}: {reason}")
    return problems


class Bootstrap(unittest.TestCase):
    named = output_of(ROOT / "scripts/bootstrap", "test", "--list").split()

    def test_names_what_tests_use(self):
        self.assertTrue(len(used_files()) > 500, "the build notes no headers")
        self.assertEqual(missing(self.named), [], "scripts/bootstrap does not install it")

    def test_notices_a_missing_package(self):
        for package in ("fish", "zsh", "libre2-dev", "libyaml-cpp-dev", "mold", "doxygen"):
            fewer = [name for name in self.named if name != package]
            self.assertEqual(len(fewer), len(self.named) - 1, package)
            noticed = [problem for problem in missing(fewer)
                       if re.search(rf"is in {package}(:|$)", problem)]
            self.assertTrue(noticed, package)

    def test_tests_without_oracles_need_no_package_of_python(self):
        for folder in ("structure", "docs", "tools", "hostile", "scripts"):
            files = list((ROOT / "tests" / folder).glob("*.py"))
            own = {file.stem for file in files}
            for file in files:
                for node in ast.walk(ast.parse(file.read_text())):
                    names = []
                    if isinstance(node, ast.Import):
                        names = [alias.name for alias in node.names]
                    elif isinstance(node, ast.ImportFrom):
                        names = [node.module or ""]
                    for name in names:
                        known = name.split(".")[0] in sys.stdlib_module_names | own
                        self.assertTrue(known, f"{file} imports {name}")


if __name__ == "__main__":
    absent = {*Bootstrap.named} - {*installed()} - {"chromium-headless-shell"}
    if absent:
        print("skipped: not everything is installed that scripts/test needs:", *sorted(absent))
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
