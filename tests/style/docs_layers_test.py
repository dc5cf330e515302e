#!/usr/bin/env python3
"""The table of folders in docs/design.md says what cmake/Layers.cmake enforces. `docs_layers_test.py ROOT`.

The table is the one with the columns `folder | may use | what it is`; the names stand in backticks, without `src/`.
`proto` may have a row, with nothing to use.
"""
import pathlib
import re
import sys

COLUMNS = ["folder", "may use", "what it is"]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def documented(text):
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if [cell.lower() for cell in cells(line)] == COLUMNS]
    if len(starts) != 1:
        sys.exit(f"docs/design.md has {len(starts)} tables with the columns {' | '.join(COLUMNS)}; it needs one")
    table = {}
    for line in lines[starts[0] + 2:]:
        if not line.strip().startswith("|"):
            break
        row = cells(line)
        folders = re.findall(r"`([^`]+)`", row[0])
        if len(row) != 3 or len(folders) != 1 or folders[0] in table:
            sys.exit(f"docs/design.md: a row has three cells and names one new folder in backticks: {line}")
        table[folders[0]] = set(re.findall(r"`([^`]+)`", row[1]))
        if not table[folders[0]] and re.search(r"\w", row[1]):
            sys.exit(f"docs/design.md: what {folders[0]} may use stands in backticks, or is a dash: {line}")
    return table


def enforced(text):
    rows = re.findall(r'^set\(COFFERDAM_MAY_USE_(\w+) ([^)]*)\)', text, re.MULTILINE)
    return {folder: set(used.replace('"', "").split()) for folder, used in rows}


def main():
    root = pathlib.Path(sys.argv[1])
    in_docs = documented((root / "docs/design.md").read_text())
    in_cmake = enforced((root / "cmake/Layers.cmake").read_text())
    if not in_cmake:
        sys.exit("cmake/Layers.cmake has no COFFERDAM_MAY_USE_ lines")
    if in_docs.get("proto") == set():
        del in_docs["proto"]
    wrong = []
    for folder in sorted(in_docs.keys() | in_cmake.keys()):
        if folder not in in_docs:
            wrong.append(f"`{folder}` has no row in docs/design.md")
        elif folder not in in_cmake:
            wrong.append(f"`{folder}` is not in cmake/Layers.cmake")
        else:
            wrong += [f"`{folder}` may use `{used}` in cmake/Layers.cmake, but not in docs/design.md"
                      for used in sorted(in_cmake[folder] - in_docs[folder])]
            wrong += [f"`{folder}` may use `{used}` in docs/design.md, but not in cmake/Layers.cmake"
                      for used in sorted(in_docs[folder] - in_cmake[folder])]
    sys.exit("\n".join(wrong) or 0)


main()
