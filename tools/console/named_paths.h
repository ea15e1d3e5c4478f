#pragma once

#include <string>
#include <vector>

namespace console {

/// A file and the option that names it.
struct NamedPath {
  std::string option;  ///< "--json"
  std::string path;    ///< empty: not given
};

/// Refuses an output that is an input, or two outputs that are one file, or the file that standard
/// output goes to. Compared as files, not as spellings; devices and pipes may be named often.
/// Errors: hydra::InvalidArgument names both options.
void refuse_shared_files(const std::vector<NamedPath>& inputs,
                         const std::vector<NamedPath>& outputs);

}  // namespace console
