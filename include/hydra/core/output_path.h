#pragma once

#include <string>

namespace hydra {

/// Where the bytes of an output go.
struct OutputPath {
  std::string target;        ///< the path at the end of symbolic links
  bool replaceable = false;  ///< nothing is there, or a regular file: written beside it and renamed
};

/// Follows symbolic links to what an output's path names. What is neither missing nor a regular
/// file (a device, a pipe, a descriptor in /proc or /dev/fd) is not replaceable: it is written
/// through. Errors: SystemError with path, cause and way out for a directory, a folder that is not
/// there, a loop of links, or a file or folder that this process may not write to.
OutputPath resolve_output(const std::string& path);

/// True when two paths name one file, however they are spelt: existing files are compared by device
/// and inode, others by their folder and name. Devices and pipes are never one file: each writer
/// has its own use of them.
bool name_one_file(const std::string& a, const std::string& b);

}  // namespace hydra
