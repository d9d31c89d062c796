// Encrypts tensors of floating-point numbers with AES-256 in counter mode. Each byte of a tensor
// has its place in the key stream of that tensor, so that a load in any layout can decrypt what a
// save in any other has stored, and each chunk is decrypted on its own. The key stream differs for
// each save, because it begins with the id of the save.
//
// Tensors are stored as integers of the same width, under a name that identifies the key: no reader
// takes them for numbers, and a load with another key reports which key is missing. Encryption
// hides the numbers; it does not prove who has written them.

#include "encryption.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <tuple>
#include <unordered_map>

namespace example {
namespace {

using Block = std::array<std::byte, 16>;

struct EncryptionOptions {
  std::string key_file{};
};

[[noreturn]] void refuse(const std::string& what, dckpt::ErrorContext where) {
  throw dckpt::CheckpointError(dckpt::ErrorCode::kUnsupported, what, std::move(where));
}

dckpt::Bytes key_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (text.size() != 32)
    refuse("the file has to hold a key of 32 bytes; head -c 32 /dev/urandom > FILE makes one",
           {.file = file});
  const dckpt::ByteView bytes = dckpt::as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// Returns the integer dtype of the same width, for floating-point dtypes.
std::optional<dckpt::DType> integer_for(dckpt::DType dtype) {
  if (!dckpt::to_string(dtype).starts_with("float") && dtype != dckpt::DType::kBFloat16)
    return std::nullopt;
  switch (dckpt::item_size(dtype)) {
    case 1: return dckpt::DType::kUInt8;
    case 2: return dckpt::DType::kInt16;
    case 4: return dckpt::DType::kInt32;
    default: return dckpt::DType::kInt64;
  }
}

/// Elements [begin, end) of a box of a tensor, in row-major order.
struct Part {
  const dckpt::Shape& tensor;
  const dckpt::Box& box;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class Cipher {
 public:
  explicit Cipher(const std::string& key_file) : key_(key_of(key_file)) {
    suffix_ = ".aes-" + dckpt::sha256_hex(key_).substr(0, 8) + ".";
  }

  std::string stored_name(const std::string& key, dckpt::DType dtype) const {
    return key + suffix_ + std::string(to_string(dtype));
  }

  /// Returns name and dtype of what is encrypted under a stored name.
  std::optional<std::pair<std::string, dckpt::DType>> plain_name(const std::string& stored) const {
    const std::size_t at = stored.rfind(suffix_);
    if (at == std::string::npos) return std::nullopt;
    const auto dtype = dckpt::parse_dtype(stored.substr(at + suffix_.size()));
    if (!dtype) return std::nullopt;
    return std::pair(stored.substr(0, at), *dtype);
  }

  /// Encrypts plaintext and decrypts ciphertext.
  void apply(const std::string& save_id, const std::string& stored_name, const Part& part,
             std::size_t width, dckpt::MutableByteView data) const {
    const Block first = first_block(save_id, stored_name);
    const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
        EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
    const auto* const key = reinterpret_cast<const unsigned char*>(key_.data());
    if (!context ||
        EVP_EncryptInit_ex(context.get(), EVP_aes_256_ctr(), nullptr, key, nullptr) != 1)
      refuse("OpenSSL has no AES-256-CTR", {.key = stored_name});
    // Rows of the box, to the extent that they are contiguous in the tensor.
    const dckpt::Shape& extents = part.box.sizes;
    std::size_t outer = extents.size();
    std::int64_t row = 1;
    while (outer > 0 && (outer == extents.size() || extents[outer] == part.tensor[outer]))
      row *= extents[--outer];
    for (std::int64_t at = part.begin; at < part.end;) {
      const std::int64_t in_row = at % row;
      const std::int64_t count = std::min(row - in_row, part.end - at);
      const std::int64_t place = place_of_row(part, outer, at / row) + in_row;
      apply_from(context.get(), first, static_cast<std::uint64_t>(place) * width,
                 data.subspan(static_cast<std::size_t>(at - part.begin) * width,
                              static_cast<std::size_t>(count) * width));
      at += count;
    }
  }

 private:
  static Block first_block(const std::string& save_id, const std::string& stored_name) {
    dckpt::Sha256 digest;
    digest.update(dckpt::as_bytes(save_id));
    digest.update(dckpt::as_bytes("/"));
    digest.update(dckpt::as_bytes(stored_name));
    Block block;
    std::copy_n(digest.finish().begin(), block.size(), block.begin());
    return block;
  }

  /// Returns the position of a row's first element in the tensor; rows are counted over the `outer`
  /// first axes of the box.
  static std::int64_t place_of_row(const Part& part, std::size_t outer, std::int64_t row) {
    std::int64_t place = 0;
    std::int64_t stride = 1;
    for (std::size_t axis = part.tensor.size(); axis-- > 0;) {
      std::int64_t index = part.box.offsets[axis];
      if (axis < outer) {
        index += row % part.box.sizes[axis];
        row /= part.box.sizes[axis];
      }
      place += index * stride;
      stride *= part.tensor[axis];
    }
    return place;
  }

  static void apply_from(EVP_CIPHER_CTX* context, Block counter, std::uint64_t place,
                         dckpt::MutableByteView data) {
    std::uint64_t carry = place / counter.size();
    for (std::size_t i = counter.size(); i-- > 0 && carry != 0; carry >>= 8) {
      carry += std::to_integer<std::uint64_t>(counter[i]);
      counter[i] = static_cast<std::byte>(carry);
    }
    const auto unsigned_bytes = [](auto* bytes) { return reinterpret_cast<unsigned char*>(bytes); };
    Block skipped{};
    int length = 0;
    bool done = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr,
                                   unsigned_bytes(counter.data())) == 1 &&
                EVP_EncryptUpdate(context, unsigned_bytes(skipped.data()), &length,
                                  unsigned_bytes(skipped.data()),
                                  static_cast<int>(place % counter.size())) == 1;
    constexpr std::size_t kAtOnce = 1 << 30;
    for (std::size_t at = 0; done && at < data.size(); at += kAtOnce) {
      const dckpt::MutableByteView piece = data.subspan(at, std::min(kAtOnce, data.size() - at));
      done = EVP_EncryptUpdate(context, unsigned_bytes(piece.data()), &length,
                               unsigned_bytes(piece.data()), static_cast<int>(piece.size())) == 1;
    }
    if (!done) refuse("OpenSSL cannot encrypt", {});
  }

  dckpt::Bytes key_;
  std::string suffix_;
};

class SaveEncrypted final : public dckpt::MCoreSavePlanner {
 public:
  explicit SaveEncrypted(const EncryptionOptions& options) : cipher_(options.key_file) {}

  dckpt::SavePlan create_local_plan() override {
    dckpt::SavePlan plan = MCoreSavePlanner::create_local_plan();
    for (dckpt::WriteItem& item : plan) {
      if (item.kind != dckpt::WriteItem::Kind::kTensor) continue;
      const auto stored = integer_for(item.properties.dtype);
      if (!stored) continue;
      if (item.flattened_shape)
        refuse("encrypted tensors keep their shapes; save with flattened: boxes",
               {.key = item.key});
      item.key = cipher_.stored_name(item.key, item.properties.dtype);
      item.properties.dtype = *stored;
      encrypted_.insert(item.key);
    }
    return plan;
  }

  void begin_save(const std::string& save_id) override { save_id_ = save_id; }

  bool resolves(const dckpt::WriteItem& item) const override {
    return encrypted_.contains(item.key);
  }
  dckpt::Tensor resolve_tensor(const dckpt::WriteItem& item, dckpt::Tensor data) const override {
    dckpt::Tensor encrypted = dckpt::Tensor::empty(item.properties.dtype, data.shape());
    std::ranges::copy(data.bytes(), encrypted.bytes().begin());
    cipher_.apply(save_id_, item.key, {item.size, item.chunk, 0, data.numel()},
                  dckpt::item_size(item.properties.dtype), encrypted.bytes());
    return encrypted;
  }

 private:
  Cipher cipher_;
  std::string save_id_;
  std::set<std::string> encrypted_;
};

/// Loads encrypted tensors; tensors that were not encrypted are loaded unchanged.
class LoadEncrypted final : public dckpt::MCoreLoadPlanner {
 public:
  explicit LoadEncrypted(const EncryptionOptions& options) : cipher_(options.key_file) {}

  std::vector<dckpt::TensorStorageMetadata> contents(const dckpt::LoadSetup& setup) const override {
    std::vector<dckpt::TensorStorageMetadata> seen = setup.metadata.tensors;
    for (dckpt::TensorStorageMetadata& tensor : seen) {
      const auto plain = cipher_.plain_name(tensor.key);
      if (plain) std::tie(tensor.key, tensor.properties.dtype) = *plain;
    }
    return seen;
  }

  dckpt::LoadPlan create_local_plan() override {
    const dckpt::Metadata& metadata = setup().metadata;
    std::unordered_map<std::string_view, const dckpt::TensorStorageMetadata*> stored;
    for (const dckpt::TensorStorageMetadata& tensor : metadata.tensors)
      stored.emplace(tensor.key, &tensor);
    dckpt::LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    for (dckpt::LoadItem& item : plan) {
      const std::string name = cipher_.stored_name(item.tensor.key, item.wanted);
      const auto found = stored.find(name);
      if (found == stored.end()) continue;
      if (found->second->global_shape() != item.tensor.global_shape)
        refuse("encrypted tensors are loaded in the shape in which they were saved",
               {.key = item.tensor.key});
      item.tensor.key = name;
      if (const auto dtype = integer_for(item.tensor.dtype)) item.tensor.dtype = *dtype;
      encrypted_.insert(name);
    }
    if (encrypted_.empty()) return plan;
    if (!metadata.storage_meta || !metadata.storage_meta->save_id)
      refuse(
          "the checkpoint has lost the id of its save, without which it cannot be decrypted; "
          "convert the original to a format that keeps it (torch_dist, dcp), or load that",
          {.key = *encrypted_.begin()});
    save_id_ = *metadata.storage_meta->save_id;
    return plan;
  }

  bool resolves(const dckpt::LoadItem& item) const override {
    return encrypted_.contains(item.tensor.key);
  }
  dckpt::Tensor commit_tensor(const dckpt::LoadItem& item, dckpt::Tensor read) const override {
    const auto [begin, end] =
        item.tensor.flattened_range.value_or(dckpt::FlattenedRange{0, read.numel()});
    const dckpt::Box box = item.tensor.global_box();
    cipher_.apply(save_id_, item.tensor.key, {item.tensor.global_shape, box, begin, end},
                  dckpt::item_size(item.wanted), read.bytes());
    dckpt::Tensor plain = dckpt::Tensor::empty(item.wanted, read.shape());
    std::ranges::copy(read.bytes(), plain.bytes().begin());
    return plain;
  }

 private:
  Cipher cipher_;
  std::string save_id_;
  std::set<std::string> encrypted_;
};

}  // namespace

void register_encryption() {
  const dckpt::config::Schema<EncryptionOptions> schema{{dckpt::config::field(
      "key_file", &EncryptionOptions::key_file, dckpt::config::text("a file with 32 bytes"))}};
  dckpt::SavePlannerEntry save = dckpt::save_planner_entry<SaveEncrypted>(
      "encrypted", "tensors are encrypted with AES-256",
      [schema](const dckpt::StrategySpec& planner) {
        return std::make_unique<SaveEncrypted>(
            dckpt::read_options(schema, planner, dckpt::kSavePlannerOptions));
      });
  save.read_by = "encrypted";
  dckpt::register_planner(std::move(save));
  dckpt::register_planner(dckpt::load_planner_entry<LoadEncrypted>(
      "encrypted", "tensors are decrypted", [schema](const dckpt::StrategySpec& planner) {
        return std::make_unique<LoadEncrypted>(
            dckpt::read_options(schema, planner, dckpt::kLoadPlannerOptions));
      }));
}

}  // namespace example
