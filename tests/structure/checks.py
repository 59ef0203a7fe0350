"""Rules of the source tree, each a function from a Tree to a list of violations ("path:line: sentence")."""

import json
import os
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
LADDER = json.loads((HERE / "ladder.json").read_text())
CODE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
SIZED_SUFFIXES = CODE_SUFFIXES | {".py", ".sh", ".cmake"}
TOP_FOLDERS = {".ci", "apps", "bench", "cmake", "docs", "examples", "fuzz", "models", "python", "scripts", "src", "tests",
               "tools"}


class Tree:
    """A checkout (or a copy of one): its root and the relative paths of its files."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = sorted(self._git_files() or self._walked_files())

    def _git_files(self):
        if not (self.root / ".git").exists():
            return None
        listed = subprocess.run(["git", "-C", str(self.root), "ls-files", "-z"], capture_output=True, text=True)
        if listed.returncode != 0:
            return None
        return [name for name in listed.stdout.split("\0") if name and (self.root / name).is_file()]

    def _walked_files(self):
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [s for s in subfolders if s not in {".git", "build", ".venv", "__pycache__"}]
            for name in names:
                yield str((pathlib.Path(folder) / name).relative_to(self.root))

    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def code(self, prefix=""):
        return [f for f in self.files if f.startswith(prefix) and pathlib.Path(f).suffix in CODE_SUFFIXES]


def is_test(name):
    return pathlib.Path(name).stem.endswith(("_test", "_bench", "_fuzz"))


def strip_comments_and_strings(text):
    """C++ text with comments and string contents blanked, line numbers kept."""
    pattern = r'R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/'
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(pattern, blank, text, flags=re.S)


def module_of(name, modules):
    """Longest entry of the ladder that holds src/asymkv/<name>; None if there is none."""
    parts = name.split("/")
    for length in range(len(parts) - 1, 0, -1):
        candidate = "/".join(parts[:length])
        if candidate in modules:
            return candidate
    return None


def check_include_ladder(tree):
    found = []
    modules = LADDER["modules"]
    for name in tree.code("src/asymkv/"):
        module = module_of(name.removeprefix("src/asymkv/"), modules)
        if module is None:
            found.append(f"{name}:1: this folder is not in tests/structure/ladder.json")
            continue
        allowed = {module} | set(modules[module])
        if is_test(name):
            allowed |= set(LADDER["tests_may_also_include"].get(module, []))
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not match:
                continue
            path = match.group(1)
            if path.startswith("asymkv/"):
                target = module_of(path.removeprefix("asymkv/"), modules)
                if target not in allowed:
                    found.append(f"{name}:{number}: {module} may not include {path}: the arrow goes up or sideways")
            elif not path.startswith(tuple(LADDER["quoted_includes_from_outside"])):
                found.append(f'{name}:{number}: include "{path}" by its path from src ("asymkv/...")')
    return found


CUDA_HEADER = re.compile(
    r'\s*#\s*include\s*[<"](cuda|cublas|cudnn|cusparse|curand|nccl|nvtx|nvrtc|cutlass|cute|cub/|thrust/|mma\.h|'
    r"cooperative_groups|device_launch|driver_types|vector_types)")


def check_cuda_headers(tree):
    found = []
    for name in tree.code("src/") + tree.code("apps/"):
        if name.startswith(tuple(LADDER["cuda_folders"])):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if CUDA_HEADER.match(line):
                found.append(f"{name}:{number}: CUDA headers belong to {' and '.join(LADDER['cuda_folders'])}")
    return found


def check_folder_readmes(tree):
    """Every folder of sources is described by its own README.md or by that of a folder above it, below src/asymkv."""
    described = {os.path.dirname(name) for name in tree.files if name.endswith("/README.md")} - {"src/asymkv", "src"}
    folders = {os.path.dirname(name) for name in tree.code("src/asymkv/")}
    return [f"{folder}:1: has sources but no README.md" for folder in sorted(folders)
            if not any(folder == known or folder.startswith(known + "/") for known in described)]


def check_file_sizes(tree):
    found = []
    for name in tree.files:
        if pathlib.Path(name).suffix in SIZED_SUFFIXES:
            lines = tree.text(name).count("\n")
            if lines > LADDER["max_file_lines"]:
                found.append(f"{name}:1: {lines} lines, the limit is {LADDER['max_file_lines']}")
    return found


def check_no_generic_fp8(tree):
    """Exact ids only: "fp8" says neither E4M3 nor E5M2. Vendor names are not ours to choose."""
    found = []
    for name in tree.code("src/") + tree.code("apps/"):
        for number, line in enumerate(strip_comments_and_strings(tree.text(name)).splitlines(), 1):
            for word in re.findall(r"\w*fp8\w*", line, flags=re.I):
                if not re.match(r"(__nv_\w+|cuda_fp8|__NV_\w+|CUDA_R_8F_\w+)$", word):
                    found.append(f"{name}:{number}: \"{word}\" is no exact type; say e4m3")
    return found


def check_no_literal_two(tree):
    found = []
    pattern = re.compile(r"(?<![\w.])2\s*\*|\*\s*2(?![\w.])")
    for folder in LADDER["byte_arithmetic_folders"]:
        for name in tree.code(folder):
            if is_test(name) or name in LADDER["literal_two_allowed"]:
                continue
            for number, line in enumerate(strip_comments_and_strings(tree.text(name)).splitlines(), 1):
                if pattern.search(line):
                    found.append(f"{name}:{number}: literal 2 in a product: K and V have sizes of their own")
    return found


def documents(tree):
    return [name for name in tree.files if name.endswith(".md")]


def exists_in(tree, path):
    path = path.rstrip("/")
    if "*" in path:
        pattern = re.compile("[^/]*".join(re.escape(part) for part in path.split("*")) + "(/.*)?$")
        return any(pattern.match(name) for name in tree.files)
    return any(name == path or name.startswith(path + "/") for name in tree.files)


def check_document_paths(tree):
    """Every path in backticks that starts at a top folder, and every relative link, must exist."""
    found = []
    for name in documents(tree):
        folder = os.path.dirname(name)
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            for quoted in re.findall(r"`([^`\s]+)`", line):
                path = re.sub(r":\d+$", "", quoted)
                top = path.split("/")[0]
                if "/" in path and top in TOP_FOLDERS and re.fullmatch(r"[\w./*+-]+", path):
                    if not exists_in(tree, path):
                        found.append(f"{name}:{number}: {path} does not exist")
            for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
                if re.match(r"[a-z]+:", link):
                    continue
                target = os.path.normpath(os.path.join(folder, link))
                if not exists_in(tree, target):
                    found.append(f"{name}:{number}: link to {link} leads nowhere")
    return found


# Written so that this file does not match itself.
MACHINE_TEXT = re.compile(
    r"(?<![\w.])/(wo[r]k|ro[o]t|ho[m]e|opt/py[r]ef|t[m]p)/|in[d]ex-url|"
    r"https?://[\w.-]*(py[p]i|python[h]osted|debian\.or[g]|artif[a]ctory|[n]exus|conda\.anac[o]nda)[\w.-]*", re.I)


def check_no_machine_text(tree):
    found = []
    for name in tree.files:
        if (tree.root / name).stat().st_size > 1_000_000 or name.endswith(".safetensors"):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            match = MACHINE_TEXT.search(line)
            if match:
                found.append(f"{name}:{number}: \"{match.group(0)}\" is a path or host of one machine")
    return found


SUBJECT = re.compile(r"(?P<modules>[a-z0-9_.-]+(/[a-z0-9_.-]+)*(, [a-z0-9_.-]+(/[a-z0-9_.-]+)*)*): (?P<first>[a-z]\w*)\b.*")
NOT_IMPERATIVE = re.compile(r"(?!.*ss$)(\w+ing|\w+ed|\w+s)$")
IMPERATIVES = {"bring", "string", "need", "embed", "feed", "seed", "shed", "speed", "focus", "bias", "canvas"}


def subject_fault(subject):
    match = SUBJECT.fullmatch(subject)
    if not match:
        return f'commit subject "{subject}" is not "<module>: imperative"'
    first = match.group("first")
    if first not in IMPERATIVES and NOT_IMPERATIVE.match(first):
        return f'commit subject "{subject}" does not start with an imperative: "{first}"'
    return None


def check_commit_subjects(tree):
    if not (tree.root / ".git").exists():
        return []
    log = subprocess.run(["git", "-C", str(tree.root), "log", "--no-merges", "--format=%h%x09%s"], capture_output=True,
                         text=True)
    found = []
    for line in log.stdout.splitlines():
        commit, subject = line.split("\t", 1)
        fault = subject_fault(subject)
        if fault and not any(commit.startswith(known) for known in LADDER.get("commits_not_checked", [])):
            found.append(f"{commit}: {fault}")
    return found


def shell_lines(tree, name):
    """(line number, command line) of every command in the ```sh blocks of a document."""
    inside = False
    continued = ""
    for number, line in enumerate(tree.text(name).splitlines(), 1):
        if line.startswith("```"):
            inside = not inside and line[3:].split(" ")[0] in {"sh", "bash", "shell"}
            continue
        if not inside or not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.endswith("\\"):
            continued += line[:-1]
            continue
        yield number, (continued + line).strip()
        continued = ""


KNOWN_PROGRAMS = {"git", "cd", "cmake", "ctest", "ninja", "bash", "python3", "apt-get", "export", "sha256sum", "ls", "cat"}


def check_shell_blocks(tree, subcommands):
    """The first word of every command is a script of the tree, a common program, or asymkv with a known subcommand."""
    found = []
    for name in documents(tree):
        for number, command in shell_lines(tree, name):
            words = [word for word in command.split() if "=" not in word.split("/")[0] or word.startswith("-")]
            first = words[0] if words else ""
            if os.path.basename(first) == "asymkv":
                second = words[1] if len(words) > 1 else "--help"
                if subcommands is not None and second not in subcommands and not second.startswith("-"):
                    found.append(f"{name}:{number}: asymkv has no command {second}")
            elif "/" in first:
                path = first.removeprefix("./")
                if not path.startswith("build/") and not (tree.root / path).is_file():
                    found.append(f"{name}:{number}: {first} does not exist")
                elif (tree.root / path).is_file() and not os.access(tree.root / path, os.X_OK):
                    found.append(f"{name}:{number}: {first} cannot be executed")
            elif first not in KNOWN_PROGRAMS:
                found.append(f"{name}:{number}: \"{first}\" is no command that this project installs")
    return found


def check_golden_examples(tree):
    """Every line of a ```golden FILE block of a document is a line of tests/golden/kv/FILE."""
    found = []
    for name in documents(tree):
        golden = None
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if line.startswith("```"):
                golden = line.split()[1] if golden is None and line.startswith("```golden ") else None
            elif golden is not None:
                path = f"tests/golden/kv/{golden}"
                if path not in tree.files or line not in tree.text(path).splitlines():
                    found.append(f"{name}:{number}: these bytes are not in {path}")
    return found


TREE_CHECKS = [check_include_ladder, check_cuda_headers, check_folder_readmes, check_file_sizes, check_no_generic_fp8,
               check_no_literal_two, check_document_paths, check_golden_examples, check_no_machine_text,
               check_commit_subjects]
