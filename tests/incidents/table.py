#!/usr/bin/env python3
"""From the log of the incident tests: what each historic bug meets, other tables, failures, and the counts.

`table.py LOG STATUS`, where STATUS is that of ctest. Ends with 1 when something failed.
"""
import pathlib
import re
import sys


def main():
    log, status = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    lines = [re.sub(r"^\d+: ", "", line) for line in log.read_text(errors="replace").splitlines()]
    rows = [line.split("|")[1:] for line in lines if line.startswith("LAYER|")]
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    if rows:
        print(f"\n{'historic bug':{widths[0]}}  {'with this layer alone':{widths[1]}}  what comes of it\n{'-' * 150}")
    last = None
    for bug, layer, how in rows:
        how = how if len(how) <= 90 else how[:87] + "..."
        print(f"{bug if bug != last else '':{widths[0]}}  {layer:{widths[1]}}  {how}")
        last = bug
    for line in lines:
        if line.startswith("TABLE|"):
            print(line.removeprefix("TABLE|"))

    passed = sum(line.startswith("[       OK ]") for line in lines)
    failed = sorted({match[1] for line in lines if (match := re.match(r"\[  FAILED  \] (\w[\w/]*\.[\w/.]+)", line))})
    skipped = sum(line.startswith("[  SKIPPED ]") and " ms)" in line for line in lines)
    # A test that died, or a command, has no lines of its own: ctest's word counts.
    died = [line for line in lines if re.search(r"\*\*\*(Failed|Exception|Timeout|Not Run)", line)]
    passed += sum(bool(re.search(r"incidents_demo\w* \.*\s+Passed", line)) for line in lines)
    if failed or died:
        print(f"\nthe log is {log}:")
        for line in [*failed, *died]:
            print(f"  {line.strip()}")
    count = len(failed) or len(died) or (0 if status == 0 else 1)
    print()
    if skipped:
        print(f"{skipped} skipped: they need stories260K.gguf, see COFFERDAM_TEST_MODELS in README.md")
    print(f"{passed} passed, {count} failed")
    sys.exit(1 if count or passed == 0 else 0)


main()
