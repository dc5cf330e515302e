#!/usr/bin/env python3
"""Branch coverage of folders of src/, from what gcov counted; every line with a branch that was never taken is named.

usage: branches.py BUILD_FOLDER SOURCE_ROOT LEAST_PERCENT FOLDER...     BUILD_FOLDER holds the .gcno and .gcda files
       branches.py --self-test

A header's code is compiled into many objects: a branch of it is taken when it is taken in any of them. Left out are
- test files (x_test.cc, testing.h, and what the random test and a fuzzer share: random_x);
- the branches of CD_CHECK statements: the side that ends the process must not be taken in a good run;
- branches to the clean-up after an exception, with the side that goes on: they are the compiler's, not the source's.
Exit code 1 when a folder stays below LEAST_PERCENT.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys


def check_lines(text):
    """The numbers of the lines that belong to a CD_CHECK statement."""
    lines = set()
    for found in re.finditer(r"\bCD_CHECK\(", text):
        depth, at, quoted = 0, found.end() - 1, False
        while at < len(text):
            letter = text[at]
            if quoted:
                if letter == "\\":
                    at += 1
                elif letter == '"':
                    quoted = False
            elif letter == '"':
                quoted = True
            elif letter == "(":
                depth += 1
            elif letter == ")":
                depth -= 1
                if depth == 0:
                    break
            at += 1
        first = text.count("\n", 0, found.start()) + 1
        lines.update(range(first, text.count("\n", 0, at) + 2))
    return lines


def without_throws(branches):
    """The counts of the branches that the source makes: a branch that throws goes, and the one beside it, where the call returned."""
    counts = []
    for branch in branches:
        if not branch["throw"]:
            counts.append(branch["count"])
        elif counts:
            counts.pop()
    return counts


class File:
    def __init__(self, text):
        self.source = text.split("\n")
        self.checks = check_lines(text)
        self.runs = collections.Counter()  # line: how often
        self.branches = {}  # (line, where its function begins): counts, by the branch's place

    def add(self, entry):
        begins = {f["name"]: (f["start_line"], f["start_column"]) for f in entry["functions"]}
        for line in entry["lines"]:
            number = line["line_number"]
            self.runs[number] += line["count"]
            counts = without_throws(line["branches"])
            if not counts:
                continue
            # An object that was compiled with exceptions may hold more of them, behind the source's own.
            key = (number, begins.get(line.get("function_name")))
            self.branches[key] = [a + b for a, b in zip(self.branches.get(key, [0] * len(counts)), counts)]

    def by_line(self):
        """{line: (branches, taken)}, without what is left out."""
        result = {}
        for (number, _), counts in self.branches.items():
            if number in self.checks:
                continue
            total, taken = result.get(number, (0, 0))
            result[number] = (total + len(counts), taken + sum(count > 0 for count in counts))
        return result

    def of_checks(self):
        return sum(len(counts) for (number, _), counts in self.branches.items() if number in self.checks)


def is_counted(path):
    return not path.name.endswith("_test.cc") and path.name != "testing.h" and not path.name.startswith("random_")


def ask_gcov(notes):
    result = subprocess.run(["gcov", "--branch-probabilities", "--json-format", "--stdout", str(notes)], check=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=notes.parent)
    return [json.loads(line) for line in result.stdout.splitlines() if line.strip()]


def read(build, root, folders):
    files = {}
    for folder in folders:
        for path in sorted((root / "src" / folder).iterdir()):
            if path.suffix in (".cc", ".h") and is_counted(path):
                files[path] = File(path.read_text(encoding="utf-8"))
    notes = sorted(build.rglob("*.gcno"))
    if not any(build.rglob("*.gcda")):
        sys.exit(f"{build} holds no counts: was a test run in it?")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for answers in pool.map(ask_gcov, notes):
            for answer in answers:
                for entry in answer["files"]:
                    # Headers are reached through links of the build folder.
                    path = pathlib.Path(os.path.realpath(os.path.join(answer["current_working_directory"], entry["file"])))
                    if path in files:
                        files[path].add(entry)
    return files


def percent(taken, total):
    return 100.0 if total == 0 else 100.0 * taken / total


def report(files, root, folders, least):
    good = True
    print(f"{'file':<36} {'lines':>6} {'run':>6} {'branches':>9} {'taken':>6} {'percent':>8}")
    missing, in_checks = [], 0
    for folder in folders:
        sums = [0, 0, 0, 0]
        for path, file in files.items():
            if path.parent != root / "src" / folder:
                continue
            lines = file.by_line()
            row = [len(file.runs), sum(count > 0 for count in file.runs.values()), sum(total for total, _ in lines.values()),
                   sum(taken for _, taken in lines.values())]
            in_checks += file.of_checks()
            sums = [a + b for a, b in zip(sums, row)]
            name = path.relative_to(root)
            if row[0] > 0:
                print(f"{str(name):<36} {row[0]:>6} {row[1]:>6} {row[2]:>9} {row[3]:>6} {percent(row[3], row[2]):>7.1f}%")
            for number, (total, taken) in sorted(lines.items()):
                if taken < total:
                    missing.append(f"{name}:{number}: {total - taken} of {total}: {file.source[number - 1].strip()}")
        share = percent(sums[3], sums[2])
        good = good and share >= least
        name = f"all of src/{folder}"
        print(f"{name:<36} {sums[0]:>6} {sums[1]:>6} {sums[2]:>9} {sums[3]:>6} {share:>7.1f}%"
              f"{'' if share >= least else f'   BELOW {least:g}%'}\n")
    print(f"lines with branches that were never taken ({len(missing)}):")
    print("\n".join(missing))
    print(f"left out: {in_checks} branches of CD_CHECK, whose failing side ends the process; those to clean-ups after exceptions; "
          "code behind fault points; test files")
    return good


def self_test():
    text = 'int f() {\n  CD_CHECK(a(b) && c,\n           "I1: )");\n  if (x) CD_CHECK(y, "z"); return 1;\n  g();\n}\n'
    assert check_lines(text) == {2, 3, 4}, check_lines(text)

    def branch(count, throw=False):
        return {"count": count, "throw": throw, "fallthrough": False}

    assert without_throws([branch(3), branch(0), branch(5), branch(0, True)]) == [3, 0]
    file = File("int f(int x) {\n  return x ? 1 : 2;\n  CD_CHECK(x, \"\");\n}\n")
    entry = {"functions": [{"name": "f", "start_line": 1, "start_column": 5}],
             "lines": [{"line_number": 2, "count": 3, "function_name": "f", "branches": [branch(3), branch(0)]},
                       {"line_number": 3, "count": 3, "function_name": "f", "branches": [branch(3), branch(0)]}]}
    file.add(entry)
    assert file.by_line() == {2: (2, 1)} and file.of_checks() == 2
    # Another object that took the other side.
    entry["lines"][0]["branches"] = [branch(0), branch(1)]
    file.add(entry)
    assert file.by_line() == {2: (2, 2)}
    # Two functions on one line count apart.
    other = {"functions": [{"name": "g", "start_line": 2, "start_column": 9}],
             "lines": [{"line_number": 2, "count": 1, "function_name": "g", "branches": [branch(0), branch(1)]}]}
    file.add(other)
    assert file.by_line() == {2: (4, 3)}
    assert not is_counted(pathlib.Path("src/kv/pool_test.cc")) and is_counted(pathlib.Path("src/kv/pool.cc"))


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    build, root, least, folders = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), float(sys.argv[3]), sys.argv[4:]
    return 0 if report(read(build, root, folders), root, folders, least) else 1


if __name__ == "__main__":
    sys.exit(main())
