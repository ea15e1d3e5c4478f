#include "runtime/torch_version.h"

#include <ATen/Version.h>
#include <torch/version.h>

#include "hydra/core/error.h"

namespace hydra {

std::string torch_version_in(std::string_view description) {
  // One of the build settings, "A=1, TORCH_VERSION=2.11.0, B=2".
  constexpr std::string_view kName = " TORCH_VERSION=";
  const std::size_t name = description.find(kName);
  if (name == std::string_view::npos) return {};
  const std::string_view rest = description.substr(name + kName.size());
  // What may follow the numbers, "a0+git70d99e9", is not in the headers.
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
}

std::string loaded_torch_version() { return torch_version_in(at::show_config()); }

void check_torch_version() {
  const std::string loaded = loaded_torch_version();
  if (loaded.empty() || loaded == TORCH_VERSION) return;
  throw SystemError("Hydra was built with LibTorch " TORCH_VERSION
                    ", and the libtorch_cpu that this program has loaded is " +
                    loaded + ": see LD_LIBRARY_PATH and the program's rpath, or build Hydra anew");
}

}  // namespace hydra
