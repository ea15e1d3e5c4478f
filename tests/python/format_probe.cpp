// Answers the comparison tests in this folder: one subcommand per question, files in, files out.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "data/unicode_class.h"
#include "hydra/checkpoint/sharded_safetensors.h"
#include "hydra/core/error.h"
#include "hydra/data/bpe_tokenizer.h"

namespace hydra {
namespace {

using Arguments = std::vector<std::string>;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Documents come as a 32-bit length, then bytes.
std::vector<std::string_view> split_documents(std::string_view all) {
  std::vector<std::string_view> documents;
  while (!all.empty()) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, all.data(), sizeof bytes);
    documents.push_back(all.substr(sizeof bytes, bytes));
    all.remove_prefix(sizeof bytes + bytes);
  }
  return documents;
}

template <typename T>
void write_values(std::ofstream& file, const T* values, std::size_t count) {
  file.write(reinterpret_cast<const char*>(values),
             static_cast<std::streamsize>(count * sizeof(T)));
}

/// classes OUT: one byte per code point.
void classes(const Arguments& arguments) {
  std::ofstream file(arguments.at(0), std::ios::binary);
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    file.put("OLNS"[static_cast<int>(detail::character_class(c))]);
  }
}

/// encode FOLDER DOCUMENTS OUT THREADS [one-way]: per document a 32-bit count, then ids; unless
/// one-way, the decoded bytes have to be the document's.
void encode(const Arguments& arguments) {
  const auto tokenizer = BpeTokenizer::from_folder(arguments.at(0));
  const std::string all = read_file(arguments.at(1));
  const auto documents = split_documents(all);
  const auto ids = tokenizer.encode_documents(documents, std::stoi(arguments.at(3)));
  const bool both_ways = arguments.size() < 5;
  std::ofstream file(arguments.at(2), std::ios::binary);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto count = static_cast<std::uint32_t>(ids[i].size());
    write_values(file, &count, 1);
    write_values(file, ids[i].data(), ids[i].size());
    if (both_ways && tokenizer.decode(ids[i]) != documents[i]) {
      throw DataError("document " + std::to_string(i) + " does not come back");
    }
  }
}

/// bench FOLDER TEXT THREADS: the seconds of encoding the text's documents, one line per round.
void bench(const Arguments& arguments) {
  const auto tokenizer = BpeTokenizer::from_folder(arguments.at(0));
  const std::string all = read_file(arguments.at(1));
  const auto documents = split_documents(all);
  const int threads = std::stoi(arguments.at(2));
  for (int round = 0; round < std::stoi(arguments.at(3)); ++round) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer.encode_documents(documents, threads);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%.6f\n", seconds.count());
  }
}

/// check: a line of the outcome for each path that comes on standard input.
void check(const Arguments& /*arguments*/) {
  std::string path;
  while (std::getline(std::cin, path)) {
    try {
      const SafetensorsReader reader(path);
      std::printf("ok\n");
    } catch (const DataError& error) {
      std::printf("refused: %s\n", std::string(error.what()).substr(path.size()).c_str());
    }
  }
}

/// Copies in pieces whose size is no multiple of anything.
template <typename Reader, typename Writer>
void copy_tensors(const Reader& reader, Writer& writer) {
  std::vector<std::byte> piece(4093);
  for (const TensorSpec& tensor : reader.tensors()) {
    const std::size_t bytes = bytes_of(tensor).size();
    for (std::size_t at = 0; at < bytes; at += piece.size()) {
      const auto part = std::span(piece).first(std::min(piece.size(), bytes - at));
      reader.read(tensor.name, Bytes(static_cast<std::int64_t>(at)), part);
      writer.append(tensor.name, part);
    }
  }
  writer.commit();
}

/// copy FROM TO: reads one file and writes its contents to another.
void copy(const Arguments& arguments) {
  const SafetensorsReader reader(arguments.at(0));
  SafetensorsWriter writer(arguments.at(1), reader.tensors(), reader.metadata());
  copy_tensors(reader, writer);
}

/// reshard FROM TO LARGEST: the same for folders; the tensors are cut in the order of their names.
void reshard(const Arguments& arguments) {
  const ShardedSafetensorsReader reader(arguments.at(0));
  auto tensors = reader.tensors();
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  ShardedSafetensorsWriter writer(arguments.at(1), tensors, reader.metadata(),
                                  Bytes(std::stoll(arguments.at(2))));
  copy_tensors(reader, writer);
}

int run(const std::string& command, const Arguments& arguments) {
  if (command == "classes") return classes(arguments), 0;
  if (command == "encode") return encode(arguments), 0;
  if (command == "bench") return bench(arguments), 0;
  if (command == "check") return check(arguments), 0;
  if (command == "copy") return copy(arguments), 0;
  if (command == "reshard") return reshard(arguments), 0;
  std::fprintf(stderr, "format_probe: no command %s\n", command.c_str());
  return 2;
}

}  // namespace
}  // namespace hydra

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    return hydra::run(argv[1], {argv + 2, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "format_probe: %s\n", error.what());
    return 1;
  }
}
