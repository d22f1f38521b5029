"""Mutation testing: change one operator, comparison or constant at a time, and report the changes that no test notices.

``make mutants MODULE=tensorstore_ds/reading COUNT=60 SEED=1``. CONTRIBUTING.md explains the report.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import coverage
import pytest

RECORDS = Path(".coverage.contexts")  # one folder per recorded run of tests: `data` of coverage, and `record.json`
PRELOADED = "numpy", "PIL.Image", "psutil", "hypothesis", "torch", "torchvision"  # once, not per mutant
NOT_COPIED = ".git", ".venv*", ".*cache*", ".coverage*", "__pycache__", "node_modules", "htmlcov", "_build", "shared"
EXAMPLES = "tensorstore_ds", "cli"  # folders with examples in docstrings
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


# --- mutants ---


@dataclass
class Mutant:
    path: str
    lines: range
    imported: bool  # the line runs when its module is imported, so the recorded contexts do not tell which tests use it
    text: str

    def diff(self) -> str:
        before = Path(self.path).read_text("utf-8").splitlines()
        lines = difflib.unified_diff(before, self.text.splitlines(), n=0, lineterm="")
        return "\n".join(f"    {line}" for line in lines if line[:3] not in ("---", "+++") and line[0] in "+-")


def changes(node: ast.AST, imported: bool) -> Iterator[ast.AST]:
    """Each small change of a node, as another node."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPPED and not (imported and isinstance(op, ast.BitOr)):
            if not any(isinstance(side, ast.JoinedStr | ast.List) or _is_text(side) for side in (left, right)):
                yield ast.BinOp(left, SWAPPED[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in SWAPPED:
            yield ast.AugAssign(target, SWAPPED[type(op)](), value)
        case ast.Compare(left, ops, rights):
            for i, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:i], SWAPPED[type(op)](), *ops[i + 1 :]], rights)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPPED[type(op)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.Invert(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), args, keywords) if name in OPPOSITES:
            yield ast.Call(ast.Name(OPPOSITES[name]), args, keywords)
        case ast.Slice(lower, upper, step):
            if lower and not isinstance(lower, ast.Constant):
                yield ast.Slice(ast.BinOp(lower, ast.Add(), ast.Constant(1)), upper, step)
            if upper and not isinstance(upper, ast.Constant):
                yield ast.Slice(lower, ast.BinOp(upper, ast.Add(), ast.Constant(1)), step)
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """All mutants of a file, but in messages, annotations, decorators, `__all__`, blocks for type checkers."""
    encoded, starts = text.encode(), [0]
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, statement: ast.stmt | None, imported: bool) -> Iterator[Mutant]:
        match node:
            case ast.JoinedStr() | ast.Raise() | ast.If(ast.Name("TYPE_CHECKING")) | ast.keyword("strict"):
                return
            case ast.Assign([ast.Name("__all__")]):
                return
        if isinstance(node, ast.stmt):
            statement = node
        for new in changes(node, imported):
            assert statement is not None
            code = ast.unparse(ast.fix_missing_locations(new))
            before = encoded[: starts[node.lineno - 1] + node.col_offset]
            after = encoded[starts[node.end_lineno - 1] + node.end_col_offset :]
            if isinstance(new, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.IfExp):
                code = code if before.endswith(b"(") and after.startswith(b")") else f"({code})"
            whole = (before + code.encode() + after).decode()
            yield Mutant(path, range(statement.lineno, node.end_lineno + 1), imported, whole)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            inside = imported and not (isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body")
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, statement, inside)

    yield from visit(ast.parse(text), None, True)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


# --- which tests reach a line ---


@dataclass
class Record:
    """One run of tests: their times, the lines that each ran, and the files as they were."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)  # of each test that passed
    files: dict[str, str] = field(default_factory=dict)  # text of each Python file

    def __post_init__(self) -> None:
        vars(self).update(json.loads((self.folder / "record.json").read_text("utf-8")))
        self.data = coverage.CoverageData(str(self.folder / "data"))
        self.data.read()

    def tests(self, mutant: Mutant) -> set[str]:
        """Those that ran one of the mutant's lines; of a line that no test ran for itself, those that ran its file."""
        measured = next((file for file in self.data.measured_files() if file.endswith(f"/{mutant.path}")), "")
        contexts = self.data.contexts_by_lineno(measured)
        then, now = self.files.get(mutant.path, "").splitlines(), Path(mutant.path).read_text("utf-8").splitlines()
        lines = {
            block.a + line - block.b
            for block in difflib.SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks()
            for line in mutant.lines
            if block.b < line <= block.b + block.size
        }
        reached = {context for line in lines for context in contexts.get(line, ())} - {""}
        if mutant.imported or not reached:
            reached = {context for found in contexts.values() for context in found}
        return {context.rpartition("|")[0] for context in reached} & self.seconds.keys()


def records(jobs: int, only: Collection[str] = ()) -> list[Record]:
    """The recorded runs, with one more of test files that are new or changed; the first is of all, or of `only`."""
    known = [Record(file.parent) for file in sorted(RECORDS.glob("*/record.json"))]
    recorded = {path: text for record in known for path, text in record.files.items()}
    wanted = {path: text for path, text in python_files().items() if path in only or (_is_test(path) and not only)}
    changed = [path for path, text in wanted.items() if recorded.get(path) != text]
    if not known or changed:
        examples = [] if known or only else [top for top in EXAMPLES if Path(top).is_dir()]
        known.append(record_run(RECORDS / f"{len(known):04}", [*examples, *changed], jobs))
    return known


def record_run(folder: Path, tests: list[str], jobs: int) -> Record:
    print("recording which lines each test runs:", ", ".join(tests) if len(tests) < 9 else "all tests", flush=True)
    folder.mkdir(parents=True)
    here = Path(__file__).resolve()
    paths = [str(Path.cwd()), str(Path.cwd() / "cli"), str(here.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-p", here.stem, "-m", "not quiet", *tests]
    whole = str(folder.resolve())
    environment = {"PYTHONPATH": ":".join(paths), "COVERAGE_FILE": f"{whole}/data", "MUTANTS_RECORD": whole}
    environment["TSDS_FAULTS"] = os.environ.get("TSDS_FAULTS", "quick")
    command += ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else ["-p", "no:xdist"]
    command += ["--cov", "--cov-context=test", "--cov-report=", "-o", "timeout=0"]  # tests take longer so
    subprocess.run(command, env=os.environ | environment, check=False)
    return Record(folder)


_seconds: dict[str, float] = {}
_failed: set[str] = set()
_files: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    ran = [path for path in config.args if path.endswith(".py")]
    for path, text in python_files().items():
        if path in ran or not Path(path).name.startswith("test_"):
            _files[path] = text


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0) + report.duration
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        passed = {test: seconds for test, seconds in _seconds.items() if test not in _failed}
        record = {"seconds": passed, "files": _files}
        Path(os.environ["MUTANTS_RECORD"], "record.json").write_text(json.dumps(record), "utf-8")


def python_files(folder: str = ".") -> dict[str, str]:
    if folder.endswith(".py"):
        return {folder: Path(folder).read_text("utf-8")}
    paths = [path for path in Path(folder).rglob("*.py") if not any(part[0] == "." for part in path.parts)]
    return {path.as_posix(): path.read_text("utf-8") for path in sorted(paths)}


def _is_test(path: str) -> bool:
    return re.fullmatch(r"tests/((faults|fuzz|remote)/)?test_\w+\.py", path) is not None


def chosen(mutant: Mutant, known: list[Record], most: int, seconds: float, only: Collection[str] = ()) -> list[str]:
    """Tests named after the module before others; of each function, one case before more; the fastest first."""
    times: dict[str, float] = {}
    for record in known:  # a test file that was recorded again replaces what was recorded of it before
        again = {test.partition("::")[0] for test in record.seconds}
        times = {test: time for test, time in times.items() if test.partition("::")[0] not in again}
        times |= {test: record.seconds[test] for test in record.tests(mutant)}
    if only:
        times = {test: time for test, time in times.items() if test.partition("::")[0] in only}
    cases: dict[str, int] = {}
    ranks = {}
    for test in sorted(times, key=lambda test: (times[test], test)):
        function = test.partition("[")[0]
        cases[function] = cases.get(function, -1) + 1
        other = Path(mutant.path).stem not in Path(test.partition("::")[0]).stem
        ranks[test] = (other, cases[function], times[test])
    result: list[str] = []
    for test in sorted(ranks, key=ranks.__getitem__):
        if len(result) < most and (times[test] <= seconds or not result):
            result.append(test)
            seconds -= times[test]
    return result


# --- trials ---


@dataclass
class Trial:
    """A copy of the tree in which one mutant at a time is tried, in a process of its own."""

    tree: Path
    mutant: Mutant | None = None
    tests: list[str] = field(default_factory=list)
    process: int = 0
    end: float = 0

    def start(self, mutant: Mutant | None, tests: list[str], limit: float, edit: int) -> None:
        self.mutant, self.tests, self.end = mutant, tests, time.monotonic() + limit
        if mutant:
            file = self.tree / mutant.path
            file.write_text(mutant.text, "utf-8")
            os.utime(file, (edit, edit))  # another time for each, since compiled files are compared by it
        sys.stdout.flush()
        self.process = os.fork()
        if not self.process:
            with contextlib.suppress(BaseException):
                os._exit(self.run())
            os._exit(70)

    def run(self) -> int:
        if not self.tests:
            return 0
        os.setsid()
        output = os.open(self.tree.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        os.chdir(self.tree)
        own = [str(self.tree), str(self.tree / "cli")]
        os.environ["PYTHONPATH"] = ":".join(own)
        sys.path[:] = [*own, *(path for path in sys.path if path not in ("", str(Path(__file__).parent)))]
        base = f"--basetemp={self.tree.with_suffix('.tmp')}"
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        return pytest.main(["-x", "-p", "no:cacheprovider", "-p", "pytest_timeout", base, "--tb=line", *self.tests])

    def result(self) -> str | None:
        """What noticed the mutant, "" if nothing did, None while it runs."""
        process, status = os.waitpid(self.process, os.WNOHANG)
        late = not process and time.monotonic() > self.end
        if not process and not late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        if self.mutant:
            shutil.copy2(self.mutant.path, self.tree / self.mutant.path)
        if late:
            os.kill(self.process, signal.SIGKILL)  # it may not have a group of its own yet
            os.waitpid(self.process, 0)
            return "the time limit"
        if os.waitstatus_to_exitcode(status) in (0, 5):
            return ""
        output = self.tree.with_suffix(".txt").read_text("utf-8", "replace")
        found = re.search(r"^(?:FAILED|ERROR) (\S+?::.*?|\S+)(?: - .*)?$", output, re.MULTILINE)
        return found[1] if found else "an error before the first test"


def run_all(mutants: list[Mutant], tests: list[list[str]], known: list[Record], jobs: int) -> list[str]:
    """What noticed each mutant. Tests that fail without a mutant as well do not count: the others are tried again."""
    times = {test: seconds for record in known for test, seconds in record.seconds.items()}
    noticed = [""] * len(mutants)
    edits = count(1)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        trials = [Trial(Path(scratch) / str(i)) for i in range(jobs)]
        for trial in trials:
            shutil.copytree(".", trial.tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))

        def run(work: list[tuple[int, Mutant | None, list[str]]]) -> Iterator[tuple[int, str]]:
            idle, busy = list(trials), {}
            while work or busy:
                while work and idle:
                    number, mutant, names = work.pop()
                    trial = idle.pop()
                    trial.start(mutant, names, 60 + 10 * sum(times[test] for test in names), next(edits))
                    busy[number] = trial
                time.sleep(0.05)
                for number, trial in list(busy.items()):
                    if (result := trial.result()) is not None:
                        idle.append(busy.pop(number))
                        yield number, result

        todo = list(range(len(mutants)))
        while todo:
            for number, result in run([(i, mutants[i], tests[i]) for i in reversed(todo)]):
                noticed[number] = result
                if not result:
                    print(f"{mutants[number].path}:{mutants[number].lines[-1]}: survived {len(tests[number])} tests")
                    print(mutants[number].diff(), flush=True)
            suspects = sorted({noticed[i] for i in todo} & times.keys())
            alone: list[tuple[int, Mutant | None, list[str]]] = [(i, None, [test]) for i, test in enumerate(suspects)]
            unsound = {suspects[i] for i, result in run(alone) if result}
            for test in unsound:
                print(f"{test} fails without a mutant as well, and is left out")
            todo = [i for i in todo if noticed[i] in unsound]
            for i in todo:
                tests[i] = [test for test in tests[i] if test not in unsound]
                noticed[i] = ""
    return noticed


def table(mutants: list[Mutant], noticed: list[str]) -> str:
    lines = ["| file | mutants | noticed | survived |", "|---|---|---|---|"]
    for path in [*sorted({mutant.path for mutant in mutants}), "all"]:
        results = [result for mutant, result in zip(mutants, noticed, strict=True) if path in ("all", mutant.path)]
        lines.append(f"| {path} | {len(results)} | {sum(map(bool, results))} | {results.count('')} |")
    return "\n".join(lines)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="files, or folders with all their files")
    parser.add_argument("--count", type=int, default=60, help="mutants to draw; default: 60")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn; default: 0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time; default: cores")
    parser.add_argument("--tests", type=int, default=100, help="tests per mutant; default: 100")
    parser.add_argument("--seconds", type=float, default=30, help="recorded time of these; default: 30")
    parser.add_argument("--only", nargs="+", default=(), metavar="FILE", help="test files; default: all")
    options = parser.parse_args(None if arguments is None else list(arguments))
    known = records(options.jobs, options.only)
    files = [file for module in options.modules for file in python_files(module).items()]
    every = [mutant for file in files for mutant in mutants_of(*file)]
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    drawn.sort(key=lambda mutant: (mutant.path, mutant.lines[-1]))
    print(f"{len(drawn)} of {len(every)} mutants, seed {options.seed}", flush=True)
    tests = [chosen(mutant, known, options.tests, options.seconds, options.only) for mutant in drawn]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    print(table(drawn, run_all(drawn, tests, known, options.jobs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
