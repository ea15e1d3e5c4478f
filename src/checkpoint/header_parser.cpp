#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/stored_dtypes.h"
#include "data/shown_text.h"
#include "hydra/core/error.h"

namespace hydra::detail {
namespace {

using Json = nlohmann::json;

struct Entry {
  TensorSpec tensor;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Takes the parser's events and builds entries; anything that the format does not have is refused
/// where it is met. The states are the places in a header where something may come next.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderHandler(const std::string& where) : where_(where) {}

  std::vector<Entry> entries{};
  TensorMetadata metadata{};

  bool null() override { refuse("null"); }
  bool boolean(bool /*value*/) override { refuse("true or false"); }
  bool number_integer(number_integer_t /*value*/) override { refuse("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    refuse("the number " + text.substr(0, 40));
  }
  bool binary(binary_t& /*value*/) override { refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) refuse("a number");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      fail("the number " + std::to_string(value) + " passes 63 bits");
    }
    numbers_.push_back(static_cast<std::int64_t>(value));
    const std::size_t most = state_ == State::kShape ? kMostDimensions : 2;
    if (numbers_.size() > most) {
      fail(key_ + " has more than " + std::to_string(most) + " numbers");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      metadata[key_] = std::move(value);
    } else if (state_ == State::kEntry && key_ == "dtype") {
      const auto dtype = stored_dtype_of(value);
      if (!dtype) fail("the dtype " + in_quotes(value) + " is unknown");
      entries.back().tensor.dtype = *dtype;
    } else {
      refuse("text");
    }
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    if (state_ == State::kStart) {
      state_ = State::kNames;
    } else if (state_ == State::kNames && key_ == kMetadataName) {
      state_ = State::kMetadata;
    } else if (state_ == State::kNames) {
      entries.emplace_back().tensor.name = key_;
      state_ = State::kEntry;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    switch (state_) {
      case State::kNames:
        if (!names_.insert(value).second)
          fail_name("the name " + in_quotes(value) + " is given twice");
        break;
      case State::kMetadata:
        if (metadata.contains(value)) fail("the metadata has " + in_quotes(value) + " twice");
        break;
      default:
        see_entry_key(value);
    }
    key_ = std::move(value);
    return true;
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      if (!(has_dtype_ && has_shape_ && has_offsets_)) {
        fail("one of dtype, shape and data_offsets is missing");
      }
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    state_ = state_ == State::kNames ? State::kEnd : State::kNames;
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (state_ != State::kEntry || key_ == "dtype") refuse("a list");
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    if (state_ == State::kShape) {
      entries.back().tensor.shape = numbers_;
    } else {
      if (numbers_.size() != 2) fail("data_offsets are not two numbers");
      entries.back().begin = numbers_[0];
      entries.back().end = numbers_[1];
    }
    state_ = State::kEntry;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const Json::exception& error) override {
    throw DataError(where_ + ": the header is not valid JSON: " + printable(error.what(), 400));
  }

 private:
  enum class State { kStart, kNames, kMetadata, kEntry, kShape, kOffsets, kEnd };

  void see_entry_key(const std::string& key) {
    bool* const seen = key == "dtype"          ? &has_dtype_
                       : key == "shape"        ? &has_shape_
                       : key == "data_offsets" ? &has_offsets_
                                               : nullptr;
    if (seen == nullptr) fail("the key " + in_quotes(key) + " is unknown");
    if (*seen) fail(key + " is given twice");
    *seen = true;
  }

  /// Refuses what is no part of the format at this place.
  [[noreturn]] void refuse(const std::string& found) const {
    switch (state_) {
      case State::kStart:
        fail_name("the header is no JSON object");
      case State::kNames:
        fail_name(in_quotes(key_) + " is " + found + " instead of an object");
      default:
        fail(printable(key_) + " has " + found + ", which does not belong there");
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    if (state_ == State::kMetadata) fail_name("metadata: " + what);
    fail_name("tensor " + in_quotes(entries.empty() ? "" : entries.back().tensor.name) + ": " +
              what);
  }
  [[noreturn]] void fail_name(const std::string& what) const {
    throw DataError(where_ + ": " + what);
  }

  const std::string& where_;
  State state_ = State::kStart;
  std::string key_;
  std::vector<std::int64_t> numbers_;
  std::unordered_set<std::string> names_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

std::string range_text(const Entry& entry) {
  return "bytes " + std::to_string(entry.begin) + " to " + std::to_string(entry.end);
}

void check_size(const Entry& entry, const std::string& where) {
  Bytes expected;
  try {
    expected = bytes_of(entry.tensor);
  } catch (const InvalidArgument& error) {
    throw DataError(where + ": " + error.what());
  }
  if (entry.end < entry.begin || entry.end - entry.begin != expected.count()) {
    throw DataError(where + ": tensor " + in_quotes(entry.tensor.name) + " has " +
                    range_text(entry) + ", its dtype and shape need " +
                    std::to_string(expected.count()));
  }
}

/// Each begins where the one before ended, and the last ends with the data.
void check_layout(const std::vector<Entry>& entries, std::int64_t data_bytes,
                  const std::string& where) {
  std::int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != end) {
      throw DataError(where + ": tensor " + in_quotes(entry.tensor.name) + " has " +
                      range_text(entry) +
                      (entry.begin < end ? ", which overlap those before: they end at "
                                         : ", which leave a gap: those before end at ") +
                      std::to_string(end));
    }
    check_size(entry, where);
    end = entry.end;
  }
  if (end != data_bytes) {
    throw DataError(
        where + ": its tensors have " + std::to_string(end) + " bytes, the file has " +
        std::to_string(data_bytes) + " behind its header: " +
        (end > data_bytes ? "it was cut off, fetch it again" : "something is appended"));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& where) {
  if (json.empty() || json.front() != '{') {
    throw DataError(where + ": the header does not begin with {");
  }
  // The parser takes a zero byte for the end of its input, and would not see what follows.
  if (json.find('\0') != json.npos) {
    throw DataError(where + ": the header is not valid JSON: it has a zero byte");
  }
  HeaderHandler handler(where);
  Json::sax_parse(json, &handler);
  std::ranges::stable_sort(handler.entries, {},
                           [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
  check_layout(handler.entries, data_bytes, where);
  SafetensorsHeader header{.metadata = std::move(handler.metadata)};
  for (Entry& entry : handler.entries) {
    header.begins.push_back(entry.begin);
    header.tensors.push_back(std::move(entry.tensor));
  }
  return header;
}

}  // namespace hydra::detail
