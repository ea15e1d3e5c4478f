// Writes what the comparisons of the report formats read.

#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "hydra/report/event_file.h"

namespace hydra {
namespace {

/// events DIRECTORY: one JSON object a line, in order: run, tag, step, value and wall_time (texts).
/// Prints the path of each run's file when its first line comes.
void events(const std::string& directory) {
  std::map<std::string, EventFile> files;
  for (std::string line; std::getline(std::cin, line);) {
    const auto scalar = nlohmann::json::parse(line);
    const std::string run = scalar.at("run");
    auto file = files.find(run);
    if (file == files.end()) {
      file = files.emplace(run, EventFile(directory, run)).first;
      std::cout << file->second.path() << "\n";
    }
    file->second.scalar(scalar.at("tag").get<std::string>(), scalar.at("step"),
                        std::strtod(scalar.at("value").get<std::string>().c_str(), nullptr),
                        std::strtod(scalar.at("wall_time").get<std::string>().c_str(), nullptr));
  }
  for (auto& [run, file] : files) file.close();
}

}  // namespace
}  // namespace hydra

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "events") {
      hydra::events(argv[2]);
      return 0;
    }
    std::cerr << "usage: report_probe events DIRECTORY\n";
  } catch (const std::exception& error) {
    std::cerr << "report_probe: " << error.what() << "\n";
  }
  return 1;
}
