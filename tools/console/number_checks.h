#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>

namespace console {

/// A check of an option's whole number: from `least` to `most`.
inline CLI::Validator whole_number(std::int64_t least,
                                   std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const bool open = most == std::numeric_limits<std::int64_t>::max();
  const std::string range = open ? std::to_string(least) + " or more"
                                 : std::to_string(least) + " to " + std::to_string(most);
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        // Not CLI11's own conversion, which takes what is too large for the largest number.
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size()) {
          return "\"" + text + "\" is not a whole number: give " + range;
        }
        return value >= least && value <= most ? "" : text + " is out of range: give " + range;
      },
      range);
}

/// A check of an option's number: finite, from `least` to `most`.
inline CLI::Validator number(double least, double most, const std::string& range) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        if (!CLI::detail::lexical_cast(text, value)) {
          return "\"" + text + "\" is not a number: give " + range;
        }
        // Written so that a value that is not a number fails.
        return value >= least && value <= most ? "" : text + " is out of range: give " + range;
      },
      range);
}

}  // namespace console
