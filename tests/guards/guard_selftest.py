#!/usr/bin/env python3
"""Plants violations of each rule of guard.py in a small tree and sees each one found."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import guard

REPOSITORY = pathlib.Path(__file__).parents[2]


class GuardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        for name in ("cmake/layers.txt", ".clang-format", ".clang-tidy", "docs/Doxyfile",
                     "include/hydra/core/mutex.h"):
            (self.root / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(REPOSITORY / name, self.root / name)
        # A tree that keeps every rule.
        self.write("include/hydra/hydra.h", '#include "hydra/core/bytes.h"\n')
        self.write("include/hydra/core/bytes.h", "// cudaMalloc is spoken of here.\nint bytes();\n")
        self.write("include/hydra/engine/run.h", '#include "hydra/core/bytes.h"\n')
        self.write("src/engine/run.cpp", '#include <torch/torch.h>\n\n#include "engine/loop.h"\n')
        self.write("src/report/json.cpp", "#include <nlohmann/json.hpp>\n")
        self.write("src/device/cuda/stream.cpp", "#include <cuda_runtime.h>\n")
        self.write("src/runtime/devices.cpp", '#include "hydra/device/cuda_device.h"\n')
        self.write("src/testing/loop.cpp", '#include "hydra/engine/run.h"\n')
        self.write("tests/core/bytes_test.cpp", "TEST(Bytes, Add) {}\nTEST_P(Bytes, Take) {}\n")
        self.write("docs/TRIALS.md", self.trials())
        self.write("tests/core/CMakeLists.txt", "hydra_test(NAME t SOURCES bytes_test.cpp)\n")

    @staticmethod
    def trials(**changed):
        """A table of all trials; changed: the last column of some, by number, or None to leave one out."""
        rows = {number: "`tests/core/bytes_test.cpp: Bytes.Add`" for number in guard.trial_numbers()}
        rows.update({int(key.removeprefix("t")): value for key, value in changed.items()})
        return "".join(f"| {number} | a fault | what is done | {held} |\n"
                       for number, held in rows.items() if held is not None)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def violations(self, rule):
        return [(path.relative_to(self.root).as_posix(), line)
                for path, line, _ in guard.RULES[rule](self.root)]

    def expect(self, rule, name, text, line=1):
        self.write(name, text)
        self.assertEqual(self.violations(rule), [(name, line)])

    def require_tool(self, rule):
        """Sees that the tree passes before something is planted in it."""
        (self.root / "src/report/json.cpp").unlink(missing_ok=True)  # takes compilers seconds to read
        try:
            self.assertEqual(self.violations(rule), [])
        except guard.Skip as reason:
            if os.environ.get("CI") == "true":
                self.fail(str(reason))
            self.skipTest(str(reason))

    def test_a_tree_that_keeps_the_rules_passes(self):
        for rule in set(guard.RULES) - {"formatting", "clang_tidy", "thread_safety", "doxygen"}:
            self.assertEqual(self.violations(rule), [], rule)

    def test_layers_finds_a_public_include_from_below(self):
        self.expect("layers", "src/core/a.cpp", '\n#include "hydra/engine/run.h"\n', 2)

    def test_layers_finds_a_private_include_from_below(self):
        self.expect("layers", "src/memory/a.cpp", '#include "device/copy_stream.h"\n')

    def test_layers_finds_a_way_round(self):
        self.expect("layers", "src/core/a.cpp", '#include "../engine/loop.h"\n')

    def test_layers_finds_testing_in_the_library(self):
        self.expect("layers", "src/select/a.cpp", '#include "hydra/testing/plain_loop.h"\n')

    def test_layers_finds_the_umbrella_in_the_library(self):
        self.expect("layers", "src/runtime/a.cpp", '#include "hydra/hydra.h"\n')

    def test_layers_finds_an_unknown_folder(self):
        self.expect("layers", "src/utils/a.cpp", "int a;\n")

    def test_torch_free_finds_each_of_torchs_roots(self):
        for include in ("torch/torch.h", "ATen/ATen.h", "c10/core/Allocator.h"):
            self.expect("torch_free", "src/report/a.cpp", f"#include <{include}>\n")

    def test_private_libraries_finds_each_of_them(self):
        for include in ("nlohmann/json.hpp", "CLI/CLI.hpp", "spdlog/spdlog.h", "fmt/core.h"):
            self.expect("private_libraries", "include/hydra/core/a.h", f"#include <{include}>\n")

    def test_cuda_names_finds_calls_and_includes(self):
        for text in ("void f() { cudaFree(nullptr); }\n", "#include <cuda_runtime.h>\n",
                     "#include <c10/cuda/CUDAStream.h>\n", "#include <torch/cuda.h>\n",
                     "bool g = torch::cuda::is_available();\n", "auto d = torch::kCUDA;\n",
                     "bool on(at::Tensor t) { return t.is_cuda(); }\n"):
            self.expect("cuda_names", "src/engine/a.cpp", text)

    def test_public_words_finds_each_of_them_whatever_brought_it(self):
        for text in ("using namespace std;", "void log(spdlog::logger& to);", "CLI::App app();",
                     "toml::table read();", "nlohmann::ordered_map f();", "std::string s = fmt::format(1);",
                     "void put(const json& value);"):
            self.expect("public_words", "include/hydra/core/a.h", f"// json\n{text}\n", 2)

    def test_quiet_library_finds_each_way_of_printing_and_of_ending(self):
        for text in ("std::cout << 1;", "std :: cerr << 1;", "std::printf(t);", "fprintf(stderr, t);",
                     "std::puts(t);", "perror(t);", "std::abort();", "abort();", "::exit(1);",
                     "if (a) std::terminate();", "at_thread_exit = std::quick_exit;", "_exit(1);"):
            for name in ("src/core/a.cpp", "include/hydra/core/a.h"):
                self.expect("quiet_library", name, f"void f() {{ {text} }}\n")
                (self.root / name).unlink()

    def test_quiet_library_leaves_the_tools_of_tests_alone(self):
        self.write("include/hydra/testing/child.h", "inline void end() { _exit(1); }\n")
        self.assertEqual(self.violations("quiet_library"), [])

    def test_quiet_library_takes_no_longer_name_member_comment_or_string_for_it(self):
        self.write("src/core/a.cpp",
                   "// std::cout is not for us; abort() neither.\n/* exit(1)\n std::cerr */\n"
                   'auto s = "std::abort()"; auto r = R"(exit(1))"; auto q = \'"\'; // " exit(1)\n'
                   "int n = 1'000'000 + std::snprintf(t, 1, s); on_exit(n); stream.abort(); p->exit(1);\n")
        self.assertEqual(self.violations("quiet_library"), [])
        self.expect("quiet_library", "src/core/a.cpp", "/* \n */ auto t = '\\''; /* */ exit(1); // '\n", 2)

    def test_uring_names_finds_them_outside_io(self):
        self.write("src/io/ring.cpp", "#include <liburing.h>\nio_uring ring;\n")
        for text in ("#include <liburing.h>", "struct io_uring;", "int n = io_uring_submit(r);"):
            self.expect("uring_names", "include/hydra/io/a.h", f"{text}  // io_uring\n")

    def test_unfinished_finds_notes_in_comments_too(self):
        for note in ("TODO", "FIXME", "XXX", "HACK"):
            self.expect("unfinished", "tests/core/bytes_test.cpp", f"// {note}: later\n")

    def test_file_names_finds_each_name_that_says_nothing(self):
        for name in ("src/core/utils.h", "src/core/string_util.cpp", "tests/engine/helpers.h",
                     "include/hydra/common/a.h", "cmake/Misc.cmake", "src/engine/job_manager.cpp"):
            self.write(name, "\n")
            self.assertEqual(len(self.violations("file_names")), 1, name)
            shutil.rmtree(self.root / pathlib.Path(name).parts[0] / "common", ignore_errors=True)
            shutil.rmtree(self.root / "include/hydra/common", ignore_errors=True)
            (self.root / name).unlink(missing_ok=True)
        self.write("src/report/utilisation.cpp", "\n")
        self.assertEqual(self.violations("file_names"), [])

    def test_registration_finds_a_file_that_is_not_listed(self):
        self.expect("registration", "tests/core/forgotten_test.cpp", "int main() {}\n")

    def test_registration_takes_no_comment_and_no_longer_name_for_a_listing(self):
        self.write("tests/core/CMakeLists.txt",
                   "hydra_test(NAME t SOURCES bytes_test.cpp)  # es_test.cpp\n")
        self.expect("registration", "tests/core/es_test.cpp", "int main() {}\n")

    def test_registration_finds_a_folder_that_is_not_built(self):
        self.write("tests/other/CMakeLists.txt", "hydra_test(NAME t SOURCES a_test.cpp)\n")
        self.expect("registration", "tests/other/a_test.cpp", "int main() {}\n")

    def test_trials_takes_several_tests_tests_of_ctest_and_what_waits(self):
        self.write("docs/TRIALS.md", self.trials(
            t2="Waits for checkpoints", t4="`tests/core/CMakeLists.txt: t`",
            t5="`tests/core/bytes_test.cpp: Bytes.Add`, `tests/core/bytes_test.cpp: Bytes.Take`"))
        self.assertEqual(self.violations("trials"), [])

    def test_trials_finds_a_row_that_is_missing_twice_there_or_beyond_the_list(self):
        for change, line in (({"t1": None}, 1), ({"t2": None}, 2), ({"t109": None}, 1), ({"t3": "Waits for x"}, 74)):
            self.expect("trials", "docs/TRIALS.md", self.trials(**change), line)
        self.expect("trials", "docs/TRIALS.md", self.trials() + self.trials().splitlines()[0] + "\n", 74)

    def test_trials_finds_a_test_that_is_not_there_and_a_row_that_says_nothing(self):
        for held in ("`tests/core/bytes_test.cpp: Bytes.Ad`", "`tests/core/other_test.cpp: Bytes.Add`",
                     "`tests/core/CMakeLists.txt: other`", "", "held by many"):
            self.expect("trials", "docs/TRIALS.md", self.trials(t4=held), 3)

    def test_formatting_finds_a_badly_indented_line(self):
        self.require_tool("formatting")
        # clang-format points at the line end that the wrong indentation follows.
        self.expect("formatting", "src/core/a.cpp", "int a;\n      int b;\n", 1)

    def test_clang_tidy_finds_an_error_and_a_name(self):
        self.require_tool("clang_tidy")
        self.expect("clang_tidy", "src/core/a.cpp", "int f() {\n  int* a = nullptr;\n  return *a;\n}\n", 3)
        self.expect("clang_tidy", "src/core/a.cpp", "void DoIt() {}\n")
        self.write("src/core/a.h", "inline int Number() { return 0; }\n")
        self.write("src/core/b.cpp", '#include "core/a.h"\n')
        # Once, though two sources include it.
        self.write("src/core/a.cpp", '#include "core/a.h"\n')
        self.assertEqual(self.violations("clang_tidy"), [("src/core/a.h", 1)])

    def test_clang_tidy_and_thread_safety_find_what_does_not_compile(self):
        for rule in ("clang_tidy", "thread_safety"):
            self.require_tool(rule)
            self.expect(rule, "src/core/a.cpp", "\nint a = b;\n", 2)
            (self.root / "src/core/a.cpp").unlink()

    def test_thread_safety_finds_a_member_that_is_read_without_its_mutex(self):
        self.require_tool("thread_safety")
        self.expect("thread_safety", "src/core/a.cpp",
                    '#include "hydra/core/mutex.h"\n'
                    "struct Count {\n"
                    "  hydra::Mutex mutex;\n"
                    "  int value HYDRA_GUARDED_BY(mutex) = 0;\n"
                    "  int read() { return value; }\n"
                    "  int read_locked() { hydra::MutexLock lock(mutex); return value; }\n"
                    "};\n", 5)

    def test_doxygen_finds_wrong_parameters_references_and_markup(self):
        self.require_tool("doxygen")
        for words in ("@param c what is not there", "See #missing.", "See @ref nowhere.",
                      "Has a \\wrongcommand.", "Has <b>no end."):
            self.write("include/hydra/core/a.h",
                       f"#pragma once\nnamespace hydra {{\n/// Adds.\n/// {words}\nint add(int a);\n}}\n")
            found = self.violations("doxygen")
            self.assertEqual({name for name, _ in found}, {"include/hydra/core/a.h"}, words)

    def test_a_missing_tool_is_skipped_with_a_way_out_but_fails_in_ci(self):
        for ci, code, word in (("", guard.SKIPPED, "skipped"), ("true", 1, "failed")):
            run = subprocess.run([sys.executable, "-B", guard.__file__, "doxygen", str(self.root)],
                                 capture_output=True, text=True, env={"PATH": "", "CI": ci})
            self.assertEqual(run.returncode, code)
            self.assertRegex(run.stdout, f"^{word}.*apt-get install doxygen")


if __name__ == "__main__":
    unittest.main()
