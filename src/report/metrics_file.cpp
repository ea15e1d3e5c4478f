#include "hydra/report/metrics_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/append_file.h"

namespace hydra {
namespace {

using Json = nlohmann::ordered_json;

// The smallest page there is: what does not cross a multiple of it crosses no page of any size.
constexpr std::size_t kPage = 4096;
// Lines differ by some digits from one step to the next.
constexpr std::size_t kDigits = 48;

std::string to_object(const StepLine& line) {
  const Json object{{"job", line.job},
                    {"step", line.step},
                    {"loss", line.loss},
                    {"learning_rate", line.learning_rate},
                    {"gradient_norm", line.gradient_norm ? Json(*line.gradient_norm) : Json()},
                    {"tokens", line.tokens},
                    {"seconds", line.seconds}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The bytes that are left of a page at a place in the file; at its start all of them.
std::size_t rest_of_page(std::int64_t at) { return kPage - static_cast<std::size_t>(at) % kPage; }

}  // namespace

struct MetricsFile::Impl {
  AppendFile file;
  std::size_t longest = 0;

  Impl(const std::string& path, Nanoseconds patience) : file(path, patience) {
    if (!file.ends_with_line()) file.append_made([this] { return end_of_last(); });
  }

  /// What a line that a crash has cut off lacks.
  std::string end_of_last() const { return file.ends_with_line() ? "" : "\n"; }

  /// The object with its end, and with spaces so that neither it nor, as far as can be known, the
  /// next line crosses a page.
  std::string placed(const std::string& object) {
    std::size_t room = rest_of_page(file.size_bytes());
    const std::size_t bytes = object.size() + 1;
    longest = std::max(longest, bytes);
    std::string line;
    if (bytes > room) {
      line.append(room, ' ');
      room = kPage;
    }
    line += object;
    const std::size_t left = bytes < room ? room - bytes : 0;
    if (left < longest + kDigits) line.append(left, ' ');
    return line + "\n";
  }
};

MetricsFile::MetricsFile(const std::string& path, Nanoseconds patience)
    : impl_(std::make_unique<Impl>(path, patience)) {}

MetricsFile::MetricsFile(MetricsFile&&) noexcept = default;

MetricsFile::~MetricsFile() = default;

void MetricsFile::append(const StepLine& line) {
  const std::string object = to_object(line);
  impl_->file.append_made([&] { return impl_->placed(object); });
}

void MetricsFile::close() { impl_->file.close(); }

}  // namespace hydra
