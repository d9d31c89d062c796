"""bootstrap_test.py ROOT BUILD: scripts/bootstrap installs everything that the tests of ROOT use, and that was used to build them in BUILD.

A package counts if the lists name it, if a named package depends on it, or if every Debian system has it: that this machine has it proves nothing."""
import ast
import functools
import re
import subprocess
import sys
import unittest
from pathlib import Path

# What a Debian system has that somebody cloned this project on, beyond what none is without.
BARE = {"ca-certificates", "git"}
# Programs that some test uses where they are found: no package of Debian 12 has them, or others do as well.
OPTIONAL = {"clang++-14", "clang++-19", "g++-12", "clang-format-14", "mpiexec", "chromium", "chromium-browser", "google-chrome", "debootstrap"}
SHELL = re.compile(r"(?:\bcommand -v |\bfor program in )((?:[\w+.-]+[ ;])+)")
PROGRAMS = [re.compile(pattern) for pattern in (
    r'has_shell\("([\w.-]+)"\)', r'std::system\("([\w.-]+) ', r'subprocess\.\w+\(\["([\w.-]+)"', r'find_program\(\w+ ([\w.+-]+)\)', r"mpiexec\.(?:mpich|openmpi)")]

ROOT, BUILD = Path(sys.argv[1]), Path(sys.argv[2])


@functools.cache
def installed():
    """{package: ([names it provides], [alternatives of each dependency], whether every system has it)}"""
    fields = "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\t${Essential} ${Priority}\n"
    packages = {}
    for line in subprocess.run(["dpkg-query", "-W", "-f", fields], capture_output=True, text=True, check=True).stdout.splitlines():
        name, provides, depends, kind = line.split("\t")
        names = lambda text: [re.split(r"[ (:]", part.strip())[0] for part in text if part.strip()]
        packages[name] = (names(provides.split(",")), [names(one.split("|")) for one in depends.split(",") if one.strip()],
                          kind.startswith("yes") or kind.endswith("required"))
    return packages


def closure(named):
    """`named` and what they bring along."""
    provided = {}
    for package, (provides, _, _) in installed().items():
        for name in [package, *provides]:
            provided.setdefault(name, []).append(package)
    found, waiting = set(), list(named)
    while waiting:
        for package in provided.get(waiting.pop(), []):
            if package not in found:
                found.add(package)
                waiting += [name for alternatives in installed()[package][1] for name in alternatives]
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
    for path in (file, Path(file).resolve()):  # /bin is a link to /usr/bin, and programs are links to alternatives
        for name in (str(path), str(path).removeprefix("/usr")):
            if name in owners():
                return owners()[name]
    return None


def programs_of_tests():
    """{program: the file that runs it}"""
    found = {}
    for file in [*ROOT.glob("tests/**/*"), *ROOT.glob("scripts/*")]:
        if not file.is_file() or file.suffix not in {"", ".sh", ".py", ".cpp", ".h", ".txt", ".cmake"} or "data" in file.parts or file == Path(__file__):
            continue
        text = file.read_text(errors="replace")
        words = [word for match in SHELL.findall(text) for word in re.split("[ ;]", match) if word]
        for program in words + [word for pattern in PROGRAMS for word in pattern.findall(text)]:
            found[program] = file.relative_to(ROOT)
    return found


@functools.cache
def used_files():
    """What the compiler read, and the libraries that the programs load: {file: a reason}"""
    found = {}
    for line in subprocess.run(["ninja", "-C", BUILD, "-t", "deps"], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("    /usr/"):
            found[line.strip()] = "a source of the tests includes it"
    for program in sorted(BUILD.glob("bin/*")):
        for path in re.findall(r"=> (/\S+)", subprocess.run(["ldd", program], capture_output=True, text=True).stdout):
            if path.startswith(("/usr/", "/lib")):
                found[path] = f"{program.name} loads it"
    return found


def missing(lists):
    """One sentence for each package that is used and not in `lists`."""
    packages = closure({*lists, *BARE, *(name for name, (_, _, everywhere) in installed().items() if everywhere)})
    problems = []
    for program, file in programs_of_tests().items():
        if program in OPTIONAL:
            continue
        paths = [Path(folder, program) for folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin") if Path(folder, program).exists()]
        if paths and owner(paths[0]) not in packages:
            problems.append(f"{file} runs {program}, which is in {owner(paths[0])}")
        elif not paths and not subprocess.run(["bash", "-c", f"[[ $(type -t {program}) == builtin ]]"]).returncode == 0:
            problems.append(f"{file} runs {program}, which no package has that is installed")
    for file, reason in used_files().items():
        package = owner(file)
        if package and package not in packages:
            problems.append(f"{file} is in {package}: {reason}")
    return problems


class Bootstrap(unittest.TestCase):
    lists = subprocess.run([ROOT / "scripts/bootstrap", "test", "--list"], capture_output=True, text=True, check=True).stdout.split()

    def test_names_what_tests_use(self):
        self.assertTrue(len(used_files()) > 500, "the build notes no headers")
        self.assertEqual(missing(self.lists), [], "scripts/bootstrap does not install it")

    def test_notices_a_missing_package(self):
        for package in ("fish", "zsh", "libre2-dev", "libyaml-cpp-dev"):
            fewer = [name for name in self.lists if name != package]
            self.assertEqual(len(fewer), len(self.lists) - 1, package)
            self.assertTrue(any(re.search(f"is in {package}(:|$)", problem) for problem in missing(fewer)), package)

    def test_tests_without_oracles_need_no_package_of_python(self):
        for folder in ("structure", "docs", "tools", "hostile", "scripts"):
            files = list((ROOT / "tests" / folder).glob("*.py"))
            own = {file.stem for file in files}
            for file in files:
                for node in ast.walk(ast.parse(file.read_text())):
                    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                    for name in names:
                        self.assertTrue(name.split(".")[0] in sys.stdlib_module_names | own, f"{file} imports {name}")


if __name__ == "__main__":
    absent = [name for name in Bootstrap.lists if name not in installed() and name != "chromium-headless-shell"]
    if absent:
        print("skipped: not everything is installed that scripts/test needs:", *absent)
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
