#include "strategies/parallel/parallel_read.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "strategies/contract/forwarding_reader.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/arange.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/random.h"

namespace dckpt::parallel_read_test {
namespace {

using testing::counting;
using testing::FakeReader;
using ::testing::HasSubstr;
using ::testing::Values;

/// A checkpoint that a rank sees through a storage of its own.
class ReaderOn final : public ForwardingReader {
 public:
  ReaderOn(const FakeReader& base, Fault fault)
      : ForwardingReader(base),
        storage_(std::make_shared<FaultyStorage>(copy(base.storage()), fault)) {}

  const FaultyStorage& storage() const noexcept override { return *storage_; }
  bool check_chunk(std::size_t, std::size_t, const ReadableFile&) const override { return true; }
  bool check_object(std::size_t) const override { return true; }

 private:
  static std::shared_ptr<Storage> copy(const Storage& from) {
    const auto bytes = read_file(*from.open("data"), std::uint64_t{1} << 30);
    auto storage = memory_storage("copy:");
    const auto file = storage->create("data");
    file->append(ByteView(bytes));
    file->close();
    return storage;
  }

  std::shared_ptr<FaultyStorage> storage_;
};

class ParallelRead : public ::testing::TestWithParam<Exchange> {
 protected:
  static constexpr std::int64_t kRows = 600, kColumns = 1024;

  ParallelRead() {
    reader_.tensor("a", DType::kFloat32, {kRows, kColumns}, counting<float>(kRows * kColumns),
                   {{{0, 0}, {kRows / 2, kColumns}}, {{kRows / 2, 0}, {kRows / 2, kColumns}}});
    reader_.tensor("scalar", DType::kFloat32, {}, counting<float>(1));
    reader_.write();
  }

  /// Loads everything on three ranks, or interleaved columns. The storage of rank `faulty` fails as
  /// specified. Returns the number of operations on that storage.
  std::uint64_t load(bool columns, int faulty, Fault fault) {
    std::uint64_t operations = 0;
    errors_.assign(3, {});
    run_ranks(3, [&](Communicator& comm) {
      const ReaderOn reader(reader_, comm.rank() == faulty ? fault : Fault{});
      const Box box =
          columns ? Box{{0, comm.rank() * 300}, {kRows, 300}} : Box{{0, 0}, {kRows, kColumns}};
      const std::vector<Tensor> destinations = {Tensor::zeros(DType::kFloat32, box.sizes),
                                                Tensor::zeros(DType::kFloat32, {})};
      const std::vector<WantedShard> wanted = {{.tensor = 0, .destination = 0, .box = box},
                                               {.tensor = 1, .destination = 1, .box = {}}};
      const auto items = plan_reads(reader.metadata(), wanted);
      try {
        read_tensors_parallel(
            reader, items, destinations, comm,
            {.exchange = GetParam(), .read = {.threads = 1, .staging = std::uint64_t{512} << 10}});
        EXPECT_TRUE(equal(destinations[0], part_of_arange({kRows, kColumns}, box)));
      } catch (const CheckpointError& error) {
        errors_[static_cast<std::size_t>(comm.rank())] = error.what();
      }
      if (comm.rank() == faulty) operations = reader.storage().operations();
    });
    return operations;
  }

  FakeReader reader_;
  std::vector<std::string> errors_;
};

TEST_P(ParallelRead, AStorageThatFailsAtAnyPointOnOneRankIsTheSameErrorOnAll) {
  for (const bool columns : {false, true}) {
    const std::uint64_t operations = load(columns, 1, {});
    EXPECT_EQ(errors_, std::vector<std::string>(3));
    ASSERT_GT(operations, 2U);
    testing::Sweep sweep;
    for (std::uint64_t at = 1; at <= operations; at = sweep.after(at)) {
      SCOPED_TRACE(sweep.trace(at));
      load(columns, 1, {Fault::Kind::kError, at});
      EXPECT_THAT(errors_[0], HasSubstr("injected")) << "operation " << at;
      EXPECT_THAT(errors_[0], HasSubstr("rank 1"));
      EXPECT_THAT(errors_, ::testing::Each(errors_[0]));
    }
  }
}

TEST_P(ParallelRead, ADestinationThatCannotBeFilledIsRefusedOnAllRanksBeforeAnythingIsRead) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](Communicator& comm) {
    const std::vector<Tensor> destinations = {
        Tensor::zeros(comm.rank() == 1 ? DType::kFloat64 : DType::kFloat32, {kRows, kColumns})};
    const WantedShard wanted{
        .tensor = 0, .destination = 0, .box = whole(ShapeView(destinations[0].shape()))};
    const auto items = plan_reads(reader_.metadata(), {&wanted, 1});
    try {
      read_tensors_parallel(reader_, items, destinations, comm, {.exchange = GetParam()});
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("a destination must be a CPU tensor of the stored dtype"));
  EXPECT_EQ(errors[0], errors[1]);
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ParallelRead, Values(Exchange::kAuto, Exchange::kAllToAll),
                         [](const auto& test) {
                           return std::string(name_of(kExchangeNames, test.param));
                         });

}  // namespace
}  // namespace dckpt::parallel_read_test
