#include "operations/convert/removal/metadata_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/pickle/value.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"

namespace dckpt::metadata_filter_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Bytes pickle_of(const std::string& name) {
  return testing::read_file(testing::golden(name) / "ckpt" / ".metadata");
}

Value loaded(ByteView pickle) {
  return pickle::value_from_graph(pickle::read_graph(pickle, ".metadata"));
}

const Value& attribute(const Value& object, const std::string& name) {
  return object.as_opaque().states.at(0).at(name);
}

Bytes without(ByteView pickle, const std::string& prefix) {
  return without_keys(pickle, [&](std::string_view key) { return key.starts_with(prefix); });
}

std::vector<std::string> keys_of(const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) keys.push_back(object.key);
  return keys;
}

/// Returns the keys of the items of all plans.
std::vector<std::string> planned_keys(const Value& metadata) {
  std::vector<std::string> keys;
  for (const Value& plan : attribute(metadata, "all_local_plans").items()) {
    for (const Value& item : attribute(plan, "items").items())
      keys.push_back(attribute(attribute(item, "index"), "fqn").as_str());
  }
  return keys;
}

TEST(MetadataFilter, WithoutAnyKeyToRemoveNothingChanges) {
  for (const std::string& name : testing::golden_names()) {
    const Bytes pickle = pickle_of(name);
    EXPECT_EQ(loaded(without(pickle, "no such key")), loaded(pickle)) << name;
  }
}

TEST(MetadataFilter, TheOtherKeysStayWithTheirPlaces) {
  const Bytes pickle = pickle_of("mcore-0.14-flattened-tp2pp2dp2");
  const Metadata before = read_dcp_metadata(pickle);
  const Metadata after = read_dcp_metadata(without(pickle, "optimizer."));
  EXPECT_THAT(keys_of(before), Contains(StartsWith("optimizer.")));
  EXPECT_THAT(keys_of(after), Not(IsEmpty()));
  EXPECT_THAT(keys_of(after), Each(Not(StartsWith("optimizer."))));
  for (const TensorStorageMetadata& tensor : after.tensors) {
    const TensorStorageMetadata& original = *before.find_tensor(tensor.key);
    EXPECT_EQ(tensor.chunks, original.chunks);
    for (std::size_t i = 0; i < tensor.places.size(); ++i)
      EXPECT_EQ(after.files[tensor.places[i].file], before.files[original.places[i].file]);
  }
}

TEST(MetadataFilter, AttributesOfMegatronLoseTheRemovedKeysOnly) {
  const Value before = loaded(pickle_of("mcore-0.14-flattened-tp2pp2dp2"));
  const Value after = loaded(without(pickle_of("mcore-0.14-flattened-tp2pp2dp2"), "optimizer."));
  EXPECT_THAT(planned_keys(before), Contains(StartsWith("optimizer.")));
  std::vector<std::string> left = planned_keys(before);
  std::erase_if(left, [](const std::string& key) { return key.starts_with("optimizer."); });
  EXPECT_EQ(planned_keys(after), left);
  EXPECT_EQ(attribute(after, "all_local_plans").items().size(),
            attribute(before, "all_local_plans").items().size());
  for (const auto& [key, entry] : attribute(after, "mcore_data").as_dict().items())
    EXPECT_THAT(key.as_str(), Not(StartsWith("optimizer.")));
  EXPECT_EQ(attribute(after, "mcore_data").as_dict().size(),
            read_dcp_metadata(without(pickle_of("mcore-0.14-flattened-tp2pp2dp2"), "optimizer."))
                .tensors.size());
  EXPECT_EQ(attribute(after, "storage_meta"), attribute(before, "storage_meta"));
}

TEST(MetadataFilter, PlansThatAreNotUnderstoodGoAsAWhole) {
  Opaque metadata = loaded(pickle_of("mcore-0.16-synthetic")).as_opaque();
  metadata.states[0]["all_local_plans"] = Value::list({"a plan"});
  metadata.states[0]["something_new"] = 7;
  const Value after =
      loaded(without(pickle::write_pickle(metadata, {.protocol = 4}), "no such key"));
  EXPECT_EQ(after.as_opaque().states[0].as_dict().find("all_local_plans"), nullptr);
  EXPECT_EQ(attribute(after, "something_new").as_int(), 7);
}

}  // namespace
}  // namespace dckpt::metadata_filter_test
