#!/usr/bin/env python3
"""Plants violations of each rule of guard.py in a small tree and sees each one found."""

import pathlib
import shutil
import tempfile
import unittest

import guard

REPOSITORY = pathlib.Path(__file__).parents[2]


class GuardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("cmake/layers.txt", ".clang-format"):
            (self.root / name).parent.mkdir(exist_ok=True)
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
        self.write("tests/core/bytes_test.cpp", "int main() {}\n")
        self.write("tests/core/CMakeLists.txt", "hydra_test(NAME t SOURCES bytes_test.cpp)\n")

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

    def test_a_tree_that_keeps_the_rules_passes(self):
        for rule in set(guard.RULES) - {"formatting"}:
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

    def test_registration_finds_a_file_that_is_not_listed(self):
        self.expect("registration", "tests/core/forgotten_test.cpp", "int main() {}\n")

    def test_registration_takes_no_comment_and_no_longer_name_for_a_listing(self):
        self.write("tests/core/CMakeLists.txt",
                   "hydra_test(NAME t SOURCES bytes_test.cpp)  # es_test.cpp\n")
        self.expect("registration", "tests/core/es_test.cpp", "int main() {}\n")

    def test_registration_finds_a_folder_that_is_not_built(self):
        self.write("tests/other/CMakeLists.txt", "hydra_test(NAME t SOURCES a_test.cpp)\n")
        self.expect("registration", "tests/other/a_test.cpp", "int main() {}\n")

    def test_formatting_finds_a_badly_indented_line(self):
        try:
            self.assertEqual(self.violations("formatting"), [])
        except guard.Skip as reason:
            self.skipTest(str(reason))
        # clang-format points at the line end that the wrong indentation follows.
        self.expect("formatting", "src/core/a.cpp", "int a;\n      int b;\n", 1)


if __name__ == "__main__":
    unittest.main()
