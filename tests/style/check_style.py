#!/usr/bin/env python3
"""Checks the form of all files of the repository: sizes, whitespace, unfinished business, and C++ format.

Limits: a source file has less than 500 lines and a C++ function less than 60. What is binary, or data, is left alone.
`check_style.py ROOT` checks; `check_style.py --self-test` checks the finding of functions.
"""
import pathlib
import re
import shutil
import subprocess
import sys

FILE_LINES, FUNCTION_LINES = 500, 60
CPP = {".cc", ".h", ".cpp"}
SOURCE = CPP | {".py", ".cmake", ".proto", ".sh", ".js", ".mjs", ".ts", ".css", ".html", ".pml", ".awk"}
PROSE = {".md", ".txt", ".toml", ".yaml", ".yml", ".json", ".service"}
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")


def all_files(root):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                            capture_output=True, text=True)
    if listed.returncode == 0:
        found = (root / name for name in listed.stdout.split("\0") if name)
    else:  # not a checkout
        found = (path for path in root.rglob("*") if not path.relative_to(root).parts[0].startswith(("build", ".")))
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def is_source(path):
    if path.suffix in SOURCE or path.name == "CMakeLists.txt":
        return True
    with path.open("rb") as file:
        return not path.suffix and file.read(2) == b"#!"


def blank(text, match_start, match_end):
    return re.sub(r"[^\n]", " ", text[match_start:match_end])


TOKENS = re.compile(
    r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'     # raw strings
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"     # not the separator in 1'000
    r"|//[^\n]*|/\*.*?\*/"
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE)


def functions(text):
    """(first line, last line, head) of every function that is not inside of another. For code as clang-format writes it."""
    text = TOKENS.sub(lambda match: blank(text, *match.span()), text)
    closing, open_braces = {}, []
    for position in (match.start() for match in re.finditer(r"[{}]", text)):
        if text[position] == "{":
            open_braces.append(position)
        elif open_braces:
            closing[open_braces.pop()] = position
    head_start, position = 0, 0
    while match := re.compile(r"[{};]").search(text, position):
        position = match.end()
        if match.group() != "{" or match.start() not in closing:
            head_start = position
            continue
        head, end = text[head_start:match.start()], closing[match.start()]
        words = re.sub(r"^\s*(?:(?:public|private|protected):\s*)*(?:template\s*<[^{};]*>\s*)?", "", head)
        if re.match(r"(?:inline\s+)?namespace\b|(?:class|struct|union|extern)\b(?!.*\()", words.strip(), re.DOTALL):
            head_start = position  # its members are looked at one by one
        elif re.match(r"\s*[,{]", text[end + 1:]):
            position = end + 1  # a_{1} in a constructor's list
        else:
            if "(" in words and not re.search(r"(?<![=!<>(\w])=(?!=)", re.sub(r"\([^()]*\)|operator\S+", "", words)):
                start = head_start + len(head) - len(head.lstrip())
                yield text.count("\n", 0, start) + 1, text.count("\n", 0, end) + 1, " ".join(words.split())
            head_start = position = end + 1


def complaints(path, name):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # binary
    source = is_source(path)
    if not source and path.suffix not in PROSE:
        return
    lines = text.splitlines()
    if source and len(lines) >= FILE_LINES:
        yield f"{name}: {len(lines)} lines; a file has less than {FILE_LINES}"
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    for number, line in enumerate(lines, start=1):
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if line != line.rstrip():
            yield f"{name}:{number}: spaces at the end"
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished business belongs into an issue"
    if path.suffix in CPP:
        for first, last, head in functions(text):
            if last - first + 1 >= FUNCTION_LINES:
                yield f"{name}:{first}: {last - first + 1} lines; a function has less than {FUNCTION_LINES}: {head[:80]}"


def format_complaints(paths):
    if not shutil.which("clang-format"):
        print("clang-format is not installed: the format of C++ is not checked")
        return
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *map(str, paths)], capture_output=True, text=True)
    yield from re.findall(r"^\S+:\d+:\d+: error: .*", done.stderr, re.MULTILINE)
    if done.returncode != 0 and "error:" not in done.stderr:
        yield f"clang-format failed: {done.stderr}"


def self_test():
    found = [head for *_, head in functions("""
namespace a {
struct S {
  S() : x_{1}, y_{2} {
  }
  int Get() const { return x_; }
  std::vector<int> list = {1, 2};
  bool operator==(const S& other) const { return F([](int x) { return x == 1; }); }
};
template <typename T>
T Make(int x = 1'000, char c = '{') {
  if (x) { return "}"; }
  return R"x({)x";
}
constexpr int kTable[] = {Make(1), 2};
auto kLambda = [](int x) { return x; };
TEST_F(Suite, Story) {
}
}  // namespace a
""")]
    expected = ["S() : x_{1}, y_{2}", "int Get() const", "bool operator==(const S& other) const", "T Make(int x = 1'000, char c = )",
                "TEST_F(Suite, Story)"]
    if found != expected:
        sys.exit(f"functions found: {found}\nexpected: {expected}")


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    root = pathlib.Path(sys.argv[1]).resolve()
    paths = all_files(root)
    found = [complaint for path in paths for complaint in complaints(path, path.relative_to(root))]
    found += format_complaints([path for path in paths if path.suffix in CPP])
    print(f"{len(paths)} files, {len(found)} complaints")
    sys.exit("\n".join(found) or 0)


main()
