"""Checks the tree, and checks the checks: every rule must fail on a copy of the tree with one planted violation.

    python3 tests/structure/structure_test.py            (ctest runs it as structure_test)
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import checks

ROOT = pathlib.Path(os.environ.get("ASYMKV_SOURCE_DIR", checks.HERE.parent.parent)).resolve()


def program():
    """The built program, if this test runs in a build tree."""
    build = os.environ.get("ASYMKV_BINARY_DIR")
    path = pathlib.Path(build) / "apps" / "asymkv" / "asymkv" if build else None
    return path if path and path.is_file() else None


def subcommands():
    if program() is None:
        return None
    text = subprocess.run([program(), "--help"], capture_output=True, text=True, check=True).stdout
    lines = text.split("Subcommands:")[-1].splitlines()
    return {line.split()[0] for line in lines if line.startswith("  ") and line.split()}


class TheTree(unittest.TestCase):
    def test_rules(self):
        tree = checks.Tree(ROOT)
        self.assertGreater(len(tree.files), 50)
        for check in checks.TREE_CHECKS:
            with self.subTest(check.__name__):
                found = check(tree)
                self.assertFalse(found, "\n" + "\n".join(found))

    def test_shell_blocks(self):
        found = checks.check_shell_blocks(checks.Tree(ROOT), subcommands())
        self.assertFalse(found, "\n" + "\n".join(found))


class PlantedViolations(unittest.TestCase):
    """Copies the tree's text files, plants one fault, and expects exactly that rule to name it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.copy = pathlib.Path(cls.folder.name) / "tree"
        for name in checks.Tree(ROOT).files:
            source = ROOT / name
            if source.stat().st_size < 300_000:
                target = cls.copy / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def expect(self, check, name, text, *parts):
        path = self.copy / name
        before = path.read_text() if path.is_file() else None
        clean = check(checks.Tree(self.copy))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if before is None else before + text)
        try:
            found = [fault for fault in check(checks.Tree(self.copy)) if fault not in clean]
        finally:
            path.unlink() if before is None else path.write_text(before)
        self.assertEqual(len(found), 1, found)
        for part in (name, *parts):
            self.assertIn(part, found[0])

    def test_arrow_up(self):
        self.expect(checks.check_include_ladder, "src/asymkv/kv/planted.h", '#include "asymkv/model/config.h"\n', "up or")
        self.expect(checks.check_include_ladder, "src/asymkv/base/planted.cc", '#include "asymkv/kv/format.h"\n', "up or")

    def test_arrow_sideways(self):
        self.expect(checks.check_include_ladder, "src/asymkv/kernels/cpu/planted.cc",
                    '#include "asymkv/kernels/ref/x.h"\n', "sideways")
        self.expect(checks.check_include_ladder, "src/asymkv/gate/planted_test.cc",
                    '#  include   "asymkv/engine/x.h"\n', "gate may not include")

    def test_unknown_module_and_relative_include(self):
        self.expect(checks.check_include_ladder, "src/asymkv/extra/x.h", "int x;\n", "not in")
        self.expect(checks.check_include_ladder, "src/asymkv/kv/planted.h", '#include "format.h"\n', "by its path")

    def test_cuda_header(self):
        self.expect(checks.check_cuda_headers, "src/asymkv/engine/planted.cc", "#include <cuda_runtime.h>\n", ":1:")
        self.expect(checks.check_cuda_headers, "src/asymkv/kernels/cpu/planted.h", '#include "cutlass/cutlass.h"\n')

    def test_folder_without_readme(self):
        folder = "src/asymkv/undescribed/deep"
        (self.copy / folder).mkdir(parents=True)
        (self.copy / folder / "x.cc").write_text("int x;\n")
        found = checks.check_folder_readmes(checks.Tree(self.copy))
        shutil.rmtree(self.copy / "src/asymkv/undescribed")
        self.assertIn(f"{folder}:1: has sources but no README.md", found)

    def test_file_size(self):
        self.expect(checks.check_file_sizes, "tools/planted.py", "x = 1\n" * 601, "601 lines")

    def test_generic_fp8(self):
        self.expect(checks.check_no_generic_fp8, "src/asymkv/kv/planted.h",
                    "// fp8 in a comment\nenum class T { kFp8 };\nconst char* s = \"fp8\";\n", ":2:", "kFp8")

    def test_literal_two(self):
        for text in ("int64_t b = 2 * rows;\n", "int64_t b = rows*2;\n"):
            self.expect(checks.check_no_literal_two, "src/asymkv/kv/planted.cc", text, "literal 2")
        self.assertEqual(checks.strip_comments_and_strings('x; // 2 * y\n"2 * z"').count("2"), 0)

    def test_document_paths(self):
        self.expect(checks.check_document_paths, "docs/planted.md", "See `src/asymkv/kv/nothing.h`.\n", "nothing.h")
        self.expect(checks.check_document_paths, "docs/planted.md", "See [it](nothing.md#top).\n", "nothing.md")

    def test_golden_examples(self):
        self.expect(checks.check_golden_examples, "docs/planted.md", "```golden bf16_bf16_none.txt\n00 11\n```\n", ":2:")

    def test_machine_text(self):
        self.expect(checks.check_no_machine_text, "docs/planted.md", "cd /" + "work/main\n", "one machine")
        self.expect(checks.check_no_machine_text, "scripts/planted.sh", "pip --index" + "-url x\n")

    def test_shell_blocks(self):
        check = lambda tree: checks.check_shell_blocks(tree, {"admit"})
        self.expect(check, "docs/planted.md", "```sh\nscripts/nothing.sh\n```\n", "does not exist")
        self.expect(check, "docs/planted.md", "```sh\nasymkv amdit MODEL\n```\n", "no command amdit")
        self.expect(check, "docs/planted.md", "```sh\nfrobnicate\n```\n", "frobnicate")

    def test_commit_subjects(self):
        for subject in ("kv: add formats", "kv, ops: pass the page count", "model/tokenizer: need fewer tables"):
            self.assertIsNone(checks.subject_fault(subject), subject)
        for subject in ("Add formats", "kv: Add formats", "kv: added formats", "kv: adds formats", "kv: adding it", "kv:x"):
            self.assertIsNotNone(checks.subject_fault(subject), subject)


if __name__ == "__main__":
    unittest.main(verbosity=2)
