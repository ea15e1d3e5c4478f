#include "console/named_paths.h"

#include "hydra/core/error.h"
#include "hydra/core/output_path.h"

namespace console {
namespace {

void refuse_if_shared(const NamedPath& other, const NamedPath& output) {
  if (other.path.empty() || output.path.empty()) return;
  if (!hydra::name_one_file(other.path, output.path)) return;
  throw hydra::InvalidArgument(output.option + " " + output.path + " is the same file as " +
                               other.option + " " + other.path +
                               ", which it would overwrite: name another");
}

}  // namespace

void refuse_shared_files(const std::vector<NamedPath>& inputs,
                         const std::vector<NamedPath>& outputs) {
  std::vector<NamedPath> taken = inputs;
  taken.push_back({"standard output,", "/proc/self/fd/1"});
  for (const NamedPath& output : outputs) {
    for (const NamedPath& other : taken) refuse_if_shared(other, output);
    taken.push_back(output);
  }
}

}  // namespace console
