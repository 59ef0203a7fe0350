"""Proves that the style tools run and bite: clang-format changes a bad file, clang-tidy reports a planted fault.

Skips, saying so, where the tools are not installed (scripts/install_deps.sh installs them).
"""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BAD_FORMAT = "int  f( int a ){return a ;}\n"
GOOD_FORMAT = "int f(int a) {\n  return a;\n}\n"


def run(*command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


class ClangFormat(unittest.TestCase):
    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_changes_a_bad_file(self):
        style = f"--style=file:{ROOT / '.clang-format'}"
        self.assertEqual(run("clang-format", style, input=BAD_FORMAT).stdout, GOOD_FORMAT)
        self.assertEqual(run("clang-format", style, input=GOOD_FORMAT).stdout, GOOD_FORMAT)
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "bad.cc"
            bad.write_text(BAD_FORMAT)
            self.assertNotEqual(run("clang-format", style, "--dry-run", "--Werror", bad).returncode, 0)


@unittest.skipUnless(shutil.which("clang-tidy"), "clang-tidy is not installed")
class ClangTidy(unittest.TestCase):
    config = f"--config-file={ROOT / '.clang-tidy'}"

    def tidy(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "planted.cc"
            source.write_text(text)
            return run("clang-tidy", self.config, "--quiet", source, "--", "-std=c++20")

    def test_lists_the_naming_check(self):
        listed = run("clang-tidy", self.config, "--list-checks").stdout
        for check in ("readability-identifier-naming", "bugprone-use-after-move", "performance-for-range-copy"):
            self.assertIn(check, listed)

    def test_reports_planted_names(self):
        result = self.tidy("int BadFunction(int BadParameter) { return BadParameter; }\n"
                           "struct bad_type { int fine; };\nconstexpr int BAD_CONSTANT = 3;\n")
        self.assertNotEqual(result.returncode, 0)
        for name in ("BadFunction", "BadParameter", "bad_type", "BAD_CONSTANT"):
            self.assertIn(f"'{name}'", result.stdout)
        self.assertIn("[readability-identifier-naming", result.stdout)

    def test_reports_a_planted_fault(self):
        result = self.tidy("struct Base { virtual ~Base() = default; virtual int size() const { return 0; } };\n"
                           "struct Derived : Base { virtual int size() const { return 1; } };\n")
        self.assertIn("modernize-use-override", result.stdout)

    def test_accepts_our_style(self):
        result = self.tidy("namespace asymkv {\nconstexpr int kSize = 3;\nenum class Side { kKey, kValue };\n"
                           "class PagePool {\n public:\n  int num_free() const { return num_free_; }\n\n private:\n"
                           "  int num_free_ = kSize;\n};\n}  // namespace asymkv\n")
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
