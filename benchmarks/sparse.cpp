#include "benchmarks/sparse.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/text.h"
#include "mapping/planning/save/global_plan.h"
#include "operations/inspect/inspect.h"
#include "operations/inspect/verify.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"

namespace dckpt::bench {
namespace {

constexpr int kRanks = 64;
constexpr int kTensors = 512;
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kColumns = 4096;

/// A file that leaves holes for zeros.
class SparseFile final : public WritableFile {
 public:
  explicit SparseFile(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666)) {
    if (fd_ < 0) fail();
  }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;
  ~SparseFile() override { ::close(fd_); }

  const std::string& name() const noexcept override { return path_; }
  using WritableFile::append;
  void append(std::span<const ByteView> parts) override {
    for (const ByteView part : parts) {
      if (!is_hole(part)) {
        const auto written = ::pwrite(fd_, part.data(), part.size(), static_cast<off_t>(position_));
        if (written != static_cast<ssize_t>(part.size())) fail();
      }
      position_ += part.size();
    }
  }
  std::uint64_t position() const noexcept override { return position_; }
  void sync() override {}
  void close() override {
    if (::ftruncate(fd_, static_cast<off_t>(position_)) != 0) fail();
  }

 private:
  static bool is_hole(ByteView part) {
    constexpr std::size_t kBlock = 4096;
    return part.size() >= kBlock && part[0] == std::byte{} &&
           std::memcmp(part.data(), part.data() + 1, part.size() - 1) == 0;
  }
  [[noreturn]] void fail() const {
    throw std::runtime_error(path_ + ": " + std::generic_category().message(errno));
  }

  std::string path_;
  int fd_;
  std::uint64_t position_ = 0;
};

class SparseStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<WritableFile> create(const std::string& name, const CreateOptions&) override {
    return std::make_unique<SparseFile>(display_path(name));
  }
};

class Zeros final : public ItemSource {
 public:
  Bytes object(const WriteItem&) override { return {}; }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    sink(ByteView(zeros_).first(item.nbytes));
  }

 private:
  Bytes zeros_ = Bytes(kRows * kColumns * 2);
};

std::vector<SavePlan> local_plans() {
  std::vector<SavePlan> plans;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<LocalShard> shards;
    for (int i = 0; i < kTensors; ++i) {
      TensorShard shard;
      shard.key = "decoder.layers." + std::to_string(i) + ".weight";
      shard.properties.dtype = DType::kBFloat16;
      shard.global_shape = {kRanks * kRows, kColumns};
      shard.box = {{rank * kRows, 0}, {kRows, kColumns}};
      shards.push_back(std::move(shard));
    }
    plans.push_back(plan_local_save(shards, FlattenedForm::kBoxes));
  }
  return plans;
}

void write_sparse(const std::filesystem::path& directory) {
  SaveOptions options{.io = {.fsync = false, .checksums = false}};
  const auto strategy = make_save_strategy(options);
  const std::vector<SavePlan> local = local_plans();
  const GlobalPlan plan = plan_global_save(local);
  std::filesystem::create_directories(directory);
  SparseStorage storage(posix_storage(directory));
  Zeros zeros;
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto number = static_cast<std::size_t>(rank);
    WrittenItems written = strategy->write_data(
        storage, "", rank, final_plan(local[number], plan.items[number]), zeros);
    places.push_back(std::move(written.places));
    files.push_back(std::move(written.files));
  }
  const CommonState common(Value::dict({{"iteration", 1}}));
  const Metadata metadata = written_metadata(plan, places, files);
  strategy->write_index(storage, "", metadata, &common);
  const MarkerFile marker = strategy->marker(storage, metadata, &common).value();
  write_small_file(storage, marker.name, marker.content, false);
}

template <typename Call>
double seconds(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double measure_sparse(const std::filesystem::path& directory, Results& results) {
  if (!std::filesystem::exists(directory)) write_sparse(directory);
  std::size_t chunks = 0;
  const double inspected = seconds([&] {
    for (const TensorSummary& tensor : inspect(*open_checkpoint(directory)).tensors)
      chunks += tensor.chunk_count;
  });
  const double verified = seconds([&] {
    if (!verify(*open_checkpoint(directory)).ok())
      throw std::runtime_error(directory.string() + " is not sound");
  });
  const std::string note = grouped(chunks) + " chunks, 64 GiB";
  results.add(std::string(kSparse), "inspect_s", "s", inspected, note);
  results.add(std::string(kSparse), "verify_s", "s", verified, note);
  return inspected + verified;
}

}  // namespace dckpt::bench
