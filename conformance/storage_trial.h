#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "conformance/report.h"
#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Runs checks, each with a new storage, and reports failures. Groups of checks derive from it and
/// use its verbs.
class StorageTrial {
 public:
  using MakeStorage = std::function<std::shared_ptr<Storage>()>;
  StorageTrial(const MakeStorage& make, ConformanceReport& report) : make_(make), report_(report) {}

 protected:
  using Names = std::vector<std::string>;

  /// Runs `body` with a new storage.
  template <typename Body>
  void check(const char* name, const Body& body) {
    ++report_.checks;
    subject_ = name;
    try {
      storage_ = make_();
      if (!storage_) return problem("there is no storage, but a null pointer");
      body(*storage_);
    } catch (const std::exception& error) {
      problem(error.what());
    }
  }

  /// Returns the code of the error that `work` throws, as text.
  template <typename Work>
  static std::string code_of(const Work& work) {
    try {
      work();
    } catch (const CheckpointError& error) {
      return to_string(error.code());
    } catch (const std::exception& error) {
      return "of another type than CheckpointError: " + printable(error.what());
    }
    return "no error";
  }

  /// Sets the beginning of the following problems, in place of the name of the check.
  void set_subject(std::string subject) { subject_ = std::move(subject); }

  // Lines are those of the calls. clang 14 has no std::source_location.
  void that(bool held, int line = __builtin_LINE()) {
    if (!held) problem("not so", line);
  }
  template <typename T>
  void equal(const T& found, const std::type_identity_t<T>& expected, int line = __builtin_LINE()) {
    if (found != expected) problem("expected " + shown(expected) + ", found " + shown(found), line);
  }
  template <typename Work>
  void fails(const std::string& code, const Work& work, int line = __builtin_LINE()) {
    const std::string found = code_of(work);
    if (found != code) problem("expected the error " + code + ", found " + found, line);
  }

  void write(const std::string& name, const std::string& content) {
    const auto file = storage_->create(name);
    file->append(as_bytes(content));
    file->sync();
    file->close();
  }
  std::string content(const std::string& name) {
    return std::string(as_text(read_file(*storage_->open(name), std::uint64_t{1} << 30)));
  }
  Names names(const std::string& directory) {
    Names found;
    for (const FileInfo& entry : storage_->list(directory)) found.push_back(entry.name);
    return found;
  }
  /// Compares the names in a directory; waits some seconds for storages whose lists may be late.
  void lists(const std::string& directory, const Names& expected, int line = __builtin_LINE()) {
    constexpr int kTries = 1000;
    const bool may_be_late = !storage_->capabilities().rename;
    for (int tries = 0; may_be_late && tries < kTries && names(directory) != expected; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    equal(names(directory), expected, line);
  }

 private:
  static constexpr int kNoLine = 0;

  static std::string shown(std::string_view text) { return quote(text); }
  static std::string shown(std::uint64_t number) { return std::to_string(number); }
  static std::string shown(const Names& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + quote(name);
    return "[" + text + "]";
  }

  void problem(const std::string& text, int line = kNoLine) {
    const std::string at = line == kNoLine ? "" : " (line " + std::to_string(line) + ")";
    report_.problems.push_back(subject_ + at + ": " + text);
  }

  const MakeStorage& make_;
  ConformanceReport& report_;
  std::shared_ptr<Storage> storage_;
  std::string subject_;
};

}  // namespace dckpt
