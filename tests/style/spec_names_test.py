#!/usr/bin/env python3
"""What the model says of the code stays true: `spec_names_test.py ROOT`.

A comment of spec/*.pml that names `Class::Function`, or a function of this project, stands over the action that models it. Each
such name must be declared in src/.
"""
import pathlib
import re
import sys

FREE_FUNCTIONS = ["VerifyArrived"]
LEAST_NAMES = 12  # fewer, and the test would be about nothing


def named(text):
    comments = re.findall(r"/\*.*?\*/", text, re.DOTALL)
    names = {name for comment in comments for name in re.findall(r"\b([A-Z]\w+::[A-Z]\w+)\b", comment)}
    return names | {name for name in FREE_FUNCTIONS if any(name in comment for comment in comments)}


def declared(name, sources):
    parts = name.split("::")
    if len(parts) == 1:
        return any(re.search(rf"\b{name}\(", text) for text in sources)
    owner, function = parts
    return any(re.search(rf"\b{owner}::{function}\(", text) for text in sources) or any(
        re.search(rf"\bclass (\w+\(.*\) )?{owner}\b", text) and re.search(rf"\b{function}\(", text) for text in sources)


def main(root):
    sources = [path.read_text() for path in (root / "src").rglob("*") if path.suffix in (".cc", ".h")]
    names = {name for path in (root / "spec").glob("*.pml") for name in named(path.read_text())}
    if len(names) < LEAST_NAMES:
        sys.exit(f"the models name {len(names)} functions; at least {LEAST_NAMES} were expected")
    if declared("DecodeHandoff::NoSuchFunction", sources):
        sys.exit("this test finds functions that do not exist")
    missing = sorted(name for name in names if not declared(name, sources))
    if missing:
        sys.exit(f"spec/*.pml name functions that src/ does not have: {', '.join(missing)}")
    print(f"{len(names)} functions")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
