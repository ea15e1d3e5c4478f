#pragma once

#include <string>
#include <string_view>

namespace hydra {

/// Returns the version, "2.11.0", in LibTorch's description of itself (at::show_config), or nothing
/// where it names none.
std::string torch_version_in(std::string_view description);

/// Returns the version of the LibTorch that this process has loaded, or nothing.
std::string loaded_torch_version();

/// LibTorch's C++ interface changes between versions, so that another one than Hydra was built with
/// would crash later, or give other bits. One that does not name its version passes.
/// Errors: SystemError names both versions.
void check_torch_version();

}  // namespace hydra
