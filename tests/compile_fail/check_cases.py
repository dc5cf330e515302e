#!/usr/bin/env python3
"""Proves that the cases of one file do not compile, each for the reason that stands beside it.

A case is a block `#ifdef MUST_FAIL_name  // regular expression`. The file must compile as it is. With the cases in it
must fail: the compiler's first error inside of each block must match that block's expression, so that a typo is no
proof. All cases are tried in one run, which saves most of the time; one that this does not prove is tried alone, where
the first error of all must be its own. The command is the one in the build's compile_commands.json.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

CASE = re.compile(r"^#ifdef MUST_FAIL_(\w+)(?:\s*//\s*(.*\S))?\s*$")


def command_for(build, source):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if pathlib.Path(entry["file"]).resolve() == source:
            words = shlex.split(entry["command"])
            break
    else:
        sys.exit(f"{source} is not in {build}/compile_commands.json")
    if pathlib.Path(words[0]).name == "ccache":
        words = words[1:]
    output = words.index("-o")
    words = words[:output] + words[output + 2:]
    # Optimisation adds nothing but time; sanitizers change no types.
    words = [word for word in words if word != "-c" and not word.startswith(("-fsanitize", "-O", "-g"))]
    return words + ["-fsyntax-only", "-fdiagnostics-color=never"], entry["directory"]


def cases_of(source):
    lines = source.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        if match := CASE.match(line):
            if not match.group(2):
                sys.exit(f"{source}:{number}: MUST_FAIL_{match.group(1)} does not say what the compiler must say")
            depth, end = 1, number
            while depth > 0:
                end += 1
                depth += lines[end - 1].startswith("#if")
                depth -= lines[end - 1].startswith("#endif")
            yield match.group(1), match.group(2), number, end


def first_error_within(source, output, first, last):
    """The text of the first error whose line lies in the block, with its notes; None without one."""
    starts = [match.start() for match in re.finditer(r"^\S+:\d+:\d+: (?:fatal )?error: ", output, re.MULTILINE)]
    for start, end in zip(starts, [*starts[1:], len(output)]):
        location = re.match(r"(\S+?):(\d+):", output[start:])
        if pathlib.Path(location.group(1)).name == source.name and first < int(location.group(2)) < last:
            return output[start:end]
    return None


def main():
    build, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    command, directory = command_for(build, source)

    def compile_with(names):
        done = subprocess.run([*command, *(f"-DMUST_FAIL_{name}" for name in names)], cwd=directory, timeout=120,
                              capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
        return done.returncode, done.stderr

    code, output = compile_with([])
    if code != 0:
        sys.exit(f"{source.name} must compile without any MUST_FAIL macro:\n{output}")
    failures, cases = [], list(cases_of(source))
    if not cases:
        sys.exit(f"{source.name} has no cases")
    _, output_of_all = compile_with([name for name, *_ in cases])
    for name, expected, first, last in cases:
        error = first_error_within(source, output_of_all, first, last)
        if error is None or not re.search(expected, error):
            code, output = compile_with([name])
            error = first_error_within(source, output, first, last) if code != 0 else None
            if code == 0:
                failures.append(f"{source.name}:{first}: {name} compiles")
            elif error is None or not re.search(expected, error):
                failures.append(f"{source.name}:{first}: {name} fails, but not in its block with '{expected}':\n{output}")
    print(f"{len(cases) - len(failures)} of {len(cases)} cases do not compile, as it must be")
    sys.exit("\n".join(failures) or 0)


main()
