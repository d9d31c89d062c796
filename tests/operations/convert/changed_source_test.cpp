// Files that another job changes or replaces while they are read: the result must not mix two
// states, and jobs that change one checkpoint in place exclude each other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "mapping/base/error.h"
#include "operations/convert/convert.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/stats.h"
#include "operations/inspect/verify.h"
#include "strategies/storage/posix.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/expect_error.h"

namespace dckpt::changed_source_test {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kElements = 1000;

Tensor filled(float value) {
  Tensor tensor = Tensor::empty(DType::kFloat32, {kElements});
  std::fill_n(reinterpret_cast<float*>(tensor.data()), kElements, value);
  return tensor;
}

class ChangedSource : public testing::Conversions {
 protected:
  /// Writes a checkpoint whose elements are all `value`, in several files of the format.
  void write(const std::string& name, float value, const std::string& format) const {
    StateDict state;
    for (const char* const key : {"a", "b", "c", "d"}) state[key] = filled(value);
    save(state, at(name + ".dcp"), {.compat = Compat::kDcp});
    ConvertOptions options{.target = {.strategy = format, .ranks = 4}};
    if (format == "hf")
      options = {.target = {.strategy = format,
                            .options = OwnOptions::from_yaml("{max_file_size: 4KiB}")}};
    run(name + ".dcp", name, options);
  }

  /// Replaces the files of a checkpoint by those of another one, each in one step.
  void replace(const std::string& name, const std::string& by) const {
    for (const auto& entry : fs::recursive_directory_iterator(at(by))) {
      if (!entry.is_regular_file()) continue;
      const fs::path to = at(name) / entry.path().lexically_relative(at(by));
      fs::copy_file(entry.path(), at("copy"), fs::copy_options::overwrite_existing);
      fs::rename(at("copy"), to);
    }
  }
};

/// Calls `act` once, when half of the bytes are done.
Progress at_half(const std::function<void()>& act) {
  return [act, done_it = false](std::uint64_t done, std::uint64_t total) mutable {
    if (done_it || total == 0 || 2 * done < total) return;
    done_it = true;
    act();
  };
}

TEST_F(ChangedSource, IsNeverMixedWithWhatItWas) {
  struct Case {
    std::string name;
    ConvertOptions options;
    std::string replaced = "model";
  };
  for (const char* const format : {"hf", "dcp"}) {
    const std::vector<Case> cases = {
        {"one process", {}},
        {"to be resumed", {.target = {.resume = true}}},
        {"workers", {.workers = {.directory = Location(at("pool"))}}},
        {"joined", {.source = {.join = {Location(at("others"))}}}, "others"},
        {"averaged", {.source = {.average = {Location(at("model2"))}}}, "model2"},
    };
    for (Case changed : cases) {
      SCOPED_TRACE(std::string(format) + ", " + changed.name);
      if (changed.options.target.resume && std::string(format) == "hf") continue;  // whole files
      for (const auto& entry : fs::directory_iterator(directory_.path())) fs::remove_all(entry);
      write("model", 1, format);
      write("model2", 2, format);
      write("newer", 3, format);
      fs::copy(at("model"), at("others"), fs::copy_options::recursive);
      if (changed.replaced == "others") {  // the source itself has other keys
        StateDict state;
        state["z"] = filled(9);
        save(state, at("z"), {.compat = Compat::kDcp});
      }
      ConvertOptions options = changed.options;
      options.target.strategy = "torch_dist";
      options.target.ranks = 4;
      options.limits.io.threads = 1;
      options.limits.memory = 4 << 20;
      options.progress = at_half([&] { replace(changed.replaced, "newer"); });
      const std::string from = changed.replaced == "others" ? "z" : "model";
      const CheckpointError error = error_of([&] { run(from, "out", options); });
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("replaced while it was being read"));
      EXPECT_THAT(error.what(), HasSubstr(changed.replaced));
      EXPECT_FALSE(fs::exists(at("out")));
    }
  }
}

TEST_F(ChangedSource, OtherFilesBesideItMayChange) {
  write("model", 1, "dcp");
  ConvertOptions options{.target = {.strategy = "torch_dist"}};
  options.progress = at_half([&] { std::ofstream(at("model") / "train.log") << "step 7"; });
  run("model", "out", options);
  EXPECT_EQ(differences(at("model"), at("out")), 0U);
}

TEST_F(ChangedSource, IsAnErrorOfEverythingThatReadsAllOfIt) {
  write("model", 1, "dcp");
  write("newer", 3, "dcp");
  write("same", 1, "dcp");
  const auto reader = [&] { return open_checkpoint(at("model")); };
  const auto other = open_checkpoint(at("same"));
  const Progress replacing = at_half([&] { replace("model", "newer"); });
  const std::vector<std::pair<std::string, std::function<void()>>> readings = {
      {"verify",
       [&] { (void)verify(*reader(), {.deep = true, .threads = 1, .progress = replacing}); }},
      {"digest", [&] { (void)digest(*reader(), {.threads = 1, .progress = replacing}); }},
      {"stats", [&] { (void)stats(*reader(), {.threads = 1, .progress = replacing}); }},
      {"diff", [&] { (void)diff(*other, *reader(), {.threads = 1, .progress = replacing}); }},
  };
  for (const auto& [name, read] : readings) {
    SCOPED_TRACE(name);
    const CheckpointError error = error_of(read);
    EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("about neither state"));
  }
}

TEST_F(ChangedSource, KeysAreNotRemovedFromACheckpointThatIsBeingReplaced) {
  write("model", 1, "torch_dist");
  ConvertOptions options{.target = {.strategy = "torch_dist", .overwrite = true}};
  std::string removal = "was not tried";
  options.progress = at_half(
      [&] { removal = error_of([&] { remove_sharded_tensors(at("model"), "a"); }).what(); });
  run("model", "model", options);
  EXPECT_THAT(removal, HasSubstr("another job changes or replaces this checkpoint"));
  EXPECT_FALSE(fs::exists(at("model") / kRemovalLock));
  remove_sharded_tensors(at("model"), "a");
  EXPECT_EQ(open_checkpoint(at("model"))->metadata().find_tensor("a"), nullptr);
}

TEST_F(ChangedSource, ACheckpointIsNotReplacedWhileItIsChanged) {
  write("model", 1, "torch_dist");
  write("other", 2, "torch_dist");
  StateDict state;
  state["a"] = filled(7);
  const std::vector<std::pair<std::string, std::function<void()>>> replacements = {
      {"by itself", [&] { run("model", "model", {.target = {.overwrite = true}}); }},
      {"by another", [&] { run("other", "model", {.target = {.overwrite = true}}); }},
      {"by one to be resumed",
       [&] { run("other", "model", {.target = {.overwrite = true, .resume = true}}); }},
      {"by a save", [&] { save(state, at("model"), {.overwrite = true}); }},
  };
  for (const auto& [name, replace_it] : replacements) {
    SCOPED_TRACE(name);
    {
      const ChangeLock lock(posix_storage(at("model")));
      const CheckpointError error = error_of(replace_it);
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("changes or replaces this checkpoint"));
    }
    replace_it();
    EXPECT_FALSE(fs::exists(at("model") / kRemovalLock));
  }
}

}  // namespace
}  // namespace dckpt::changed_source_test
