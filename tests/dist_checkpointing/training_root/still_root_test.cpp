#include "dist_checkpointing/training_root/still_root.h"

#include <gmock/gmock.h>

#include "operations/upkeep/diagnosis.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"
#include "tests/operations/upkeep/kept_root.h"

namespace dckpt::testing::still_root_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

/// A root in which a job goes on as soon as somebody looks into one of the iterations.
class LiveRoot final : public ForwardingStorage {
 public:
  LiveRoot(std::shared_ptr<Storage> root, std::function<void(const std::string&)> look)
      : ForwardingStorage(std::move(root)), look_(std::move(look)) {}
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    look_(name);
    return storage_->subtree(name);
  }

 private:
  std::function<void(const std::string&)> look_;
};

class StillRoot : public KeptRoot {
 protected:
  /// Iteration 10, which the tracker names. Saves the next and removes it when it is looked into,
  /// `times` times.
  Location live(int times) {
    for (const std::string& name : names()) fs::remove_all(root_ / name);
    newest_ = 10;
    make(newest_);
    track("10");
    const auto go_on = [this, times](const std::string& name) mutable {
      if (name != iteration_directory(newest_) || times == 0) return;
      --times;
      make(newest_ + 10);
      track(std::to_string(newest_ + 10));
      fs::remove_all(path(newest_));
      newest_ += 10;
    };
    return Location(std::make_shared<LiveRoot>(posix_storage(root_.path()), go_on));
  }
  std::uint64_t newest_ = 0;
};

TEST_F(StillRoot, IsWhatIsFoundThoughAJobSavesAndRemovesMeanwhile) {
  for (const int times : {0, 1, 3}) {
    SCOPED_TRACE(times);
    EXPECT_EQ(find_latest(live(times))->iteration, newest_);
    const RootSurvey survey = survey_root(live(times), {.retention = Retention{.keep_last = 1}});
    EXPECT_EQ(survey.resume.checkpoint->iteration, newest_);
    EXPECT_EQ(survey.iterations.size(), 1U);
    const RootDiagnosis found = diagnose_root(live(times));
    EXPECT_TRUE(found.ok()) << found.tracker_problem;
    EXPECT_EQ(found.megatron.directory, iteration_directory(newest_));
    EXPECT_THAT(found.survey.resume.passed_over, IsEmpty());
  }
}

}  // namespace
}  // namespace dckpt::testing::still_root_test
