#include "hydra/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <span>

#include "hydra/core/check.h"
#include "hydra/core/error.h"
#include "hydra/core/sha256.h"
#include "report/append_file.h"
#include "report/event_record.h"
#include "report/utf8.h"

namespace hydra {
namespace {

constexpr std::size_t kLongestKeptName = 200;  // a file name has at most 255 bytes
constexpr std::size_t kDigestDigits = 12;
constexpr std::size_t kLargestBuffer = 64 << 10;

bool stays(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() > 1) {
    // U+0080 to U+009F are control characters.
    return first != 0xC2 || static_cast<unsigned char>(character[1]) >= 0xA0;
  }
  const bool letter = (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z');
  const bool digit = first >= '0' && first <= '9';
  return letter || digit || std::string_view(" -_.,+=@()[]").find(character) != std::string::npos;
}

/// Each character that stays, `_` for each other one, cut to the longest name.
std::string kept_name(std::string_view name) {
  std::string kept;
  while (!name.empty()) {
    const std::size_t length = utf8_length(name);
    const bool keep = length > 0 && stays(name.substr(0, length));
    const std::string_view character = keep ? name.substr(0, length) : "_";
    if (kept.size() + character.size() > kLongestKeptName) break;
    kept += character;
    name.remove_prefix(length == 0 ? 1 : length);
  }
  if (!kept.empty()) {
    if (std::string_view(". -").find(kept.front()) != std::string_view::npos) kept.front() = '_';
    if (kept.back() == ' ') kept.back() = '_';
  }
  return kept;
}

std::string digest_of(std::string_view text) {
  Sha256 digest;
  digest.update(std::as_bytes(std::span(text)));
  return digest.hex_digest().substr(0, kDigestDigits);
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return kept_name(name);
}

std::string make_run_directory(const std::string& directory, std::string_view run) {
  const std::filesystem::path path = std::filesystem::path(directory) / run_directory_name(run);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw SystemError("cannot make the folder " + path.string() + ": " + error.message() +
                      ": name a folder that this process may make and write to");
  }
  return path.string();
}

/// Makes a file under the first name in the folder that none has. Why it could not be made is told
/// by whoever opens it.
std::string make_new_file(const std::string& folder, double wall_time) {
  char start[32];
  std::snprintf(start, sizeof start, "%010lld", static_cast<long long>(wall_time));
  const std::string stem = folder + "/events.out.tfevents." + start + "." + host_name() + "." +
                           std::to_string(::getpid()) + ".";
  for (int number = 0;; ++number) {
    std::string path = stem + std::to_string(number);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const bool taken = file < 0 && errno == EEXIST;
    if (file >= 0) ::close(file);
    if (!taken) return path;
  }
}

}  // namespace

std::string run_directory_name(std::string_view name) {
  const std::string kept = kept_name(name);
  return !kept.empty() && kept == name ? kept : kept + "~" + digest_of(name);
}

struct EventFile::Impl {
  AppendFile file;
  std::string buffered;

  explicit Impl(const std::string& path) : file(path) {}

  void flush() {
    const std::string records = std::move(buffered);
    buffered.clear();
    file.append(records);
  }
};

EventFile::EventFile(const std::string& directory, std::string_view run) {
  const double wall_time = seconds_since_epoch();
  impl_ = std::make_unique<Impl>(make_new_file(make_run_directory(directory, run), wall_time));
  impl_->buffered = framed(version_event(wall_time));
  impl_->flush();
}

EventFile::EventFile(EventFile&&) noexcept = default;

EventFile::~EventFile() {
  try {
    if (impl_) close();
  } catch (...) {  // told by close() to those who ask
  }
}

const std::string& EventFile::path() const noexcept { return impl_->file.path(); }

void EventFile::scalar(std::string_view tag, std::int64_t step, double value, double wall_time) {
  HYDRA_CHECK(impl_->file.is_open(), path() + " has been closed");
  impl_->buffered += framed(scalar_event(tag, step, value, wall_time));
  if (impl_->buffered.size() >= kLargestBuffer) flush();
}

void EventFile::flush() { impl_->flush(); }

void EventFile::close() {
  if (!impl_->file.is_open()) return;
  try {
    impl_->flush();
  } catch (...) {
    impl_->file.close();
    throw;
  }
  impl_->file.close();
}

}  // namespace hydra
