#include "operations/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/text.h"
#include "operations/page/columns.h"
#include "strategies/formats/json/json.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::page_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Returns the data of a page, and checks that they are inert where they are.
Value data_of(const std::string& html) {
  const std::string head = R"(<script type="application/json" id="data">)";
  const std::size_t begin = html.find(head) + head.size();
  const std::string json = html.substr(begin, html.find("</script>", begin) - begin);
  EXPECT_TRUE(std::ranges::all_of(json, [](unsigned char c) { return c >= 0x20 && c < 0x7F; }));
  EXPECT_EQ(json.find_first_of("<>&"), std::string::npos);
  return parse_json(as_bytes(json), "page");
}

/// Decodes a column: base64, then seven bits a byte.
std::vector<std::uint64_t> numbers(const Value& column) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint64_t> decoded;
  std::uint64_t bits = 0, held = 0, number = 0, shift = 0;
  for (const char c : column.as_str()) {
    if (c == '=') break;
    bits = bits << 6 | digits.find(c);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    const std::uint64_t byte = bits >> held & 0xFF;
    number |= (byte & 0x7F) << shift;
    shift += 7;
    if (byte >= 0x80) continue;
    decoded.push_back(number);
    number = shift = 0;
  }
  return decoded;
}

std::vector<std::string> names(const Value& column) {
  const std::vector<std::uint64_t> shared = numbers(column.at("shared"));
  const std::vector<std::uint64_t> rest = numbers(column.at("rest"));
  std::vector<std::string> decoded;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    std::size_t end = 0;
    for (std::uint64_t k = 0; k < shared[i]; ++k) end = decoded.back().find('.', end) + 1;
    decoded.push_back((i == 0 ? "" : decoded.back().substr(0, end)) +
                      column.at("rests").items()[rest[i]].as_str());
  }
  return decoded;
}

/// Returns "KEY BOX FILE" of each chunk that a page lists.
std::multiset<std::string> chunks_of(const Value& data) {
  const Value& tensors = data.at("tensors");
  const std::vector<std::string> keys = names(tensors.at("names"));
  const std::vector<std::string> files = names(data.at("files").at("names"));
  std::vector<std::vector<Box>> cuts;
  const std::vector<std::uint64_t> entries = numbers(tensors.at("cuts"));
  for (std::size_t at = 0; at < entries.size();) {
    const auto take = [&] { return static_cast<std::int64_t>(entries[at++]); };
    Shape shape(static_cast<std::size_t>(take()));
    for (std::int64_t& extent : shape) extent = take();
    const bool is_grid = take() == 1;
    std::vector<Box> boxes(1);
    if (!is_grid) boxes.resize(static_cast<std::size_t>(take()));
    for (std::size_t axis = 0; is_grid && axis < shape.size(); ++axis) {
      Shape sizes(static_cast<std::size_t>(take()));
      for (std::int64_t& size : sizes) size = take();
      std::vector<Box> longer;
      for (const Box& box : boxes) {
        std::int64_t offset = 0;
        for (const std::int64_t size : sizes) {
          longer.push_back(box);
          longer.back().offsets.push_back(offset);
          longer.back().sizes.push_back(size);
          offset += size;
        }
      }
      boxes = longer;
    }
    for (std::size_t box = 0; !is_grid && box < boxes.size(); ++box) {
      for (const std::int64_t extent : shape) {
        boxes[box].offsets.push_back(take());
        boxes[box].sizes.push_back(extent - boxes[box].offsets.back() - take());
      }
    }
    cuts.push_back(boxes);
  }
  std::multiset<std::string> chunks;
  const std::vector<std::uint64_t> cut = numbers(tensors.at("cut"));
  const std::vector<std::uint64_t> owner = numbers(tensors.at("owner"));
  std::size_t at = 0;
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (const Box& box : cuts[cut[i]])
      chunks.insert(keys[i] + " " + to_string(box) + " " + files[owner[at++]]);
  EXPECT_EQ(at, owner.size());
  return chunks;
}

TEST(Page, EveryChunkIsThereWithItsBoxAndItsFile) {
  for (const char* const name :
       {"mcore-0.14-flattened-tp2pp2dp2", "mcore-0.16-fully-reshardable-tp2pp2dp2", "dcp-fsdp2-tp",
        "mcore-0.14-zarr-tp2pp1dp2", "tc-0.1-native-2d"}) {
    const auto reader = open_checkpoint(golden(name));
    const Metadata& metadata = reader->metadata();
    std::multiset<std::string> expected;
    for (const TensorStorageMetadata& tensor : metadata.tensors)
      for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
        expected.insert(tensor.key + " " + to_string(tensor.chunks[i]) + " " +
                        metadata.files[tensor.places[i].file]);
    const Value data = data_of(page_html(gather_page(*reader, {})));
    EXPECT_EQ(chunks_of(data), expected) << name;
    EXPECT_EQ(names(data.at("objects").at("names")).size(), metadata.objects.size());
  }
}

/// Two pieces of a grid twice, and two not at all: not a grid.
TEST(Page, BoxesThatOverlapAreListedAsTheyAre) {
  FakeReader reader;
  reader.tensor<float>("w", DType::kFloat32, {2, 2}, {1, 2, 3, 4},
                       {{{0, 0}, {1, 1}}, {{0, 0}, {1, 1}}, {{1, 1}, {1, 1}}, {{1, 1}, {1, 1}}});
  const Value data = data_of(page_html(gather_page(reader.write(), {})));
  EXPECT_THAT(chunks_of(data), ElementsAre("w [0:1, 0:1] data", "w [0:1, 0:1] data",
                                           "w [1:2, 1:2] data", "w [1:2, 1:2] data"));
  EXPECT_THAT(data.at("verdict").at("problems").items(), Not(IsEmpty()));
}

const std::vector<std::string> kHostileNames = {"",
                                                ".",
                                                "..a..",
                                                "</script><script>alert(1)</script>",
                                                "<!--<script>",
                                                "-->",
                                                "]]>",
                                                "<img src=x onerror=alert(1)>",
                                                "\" onmouseover=\"alert(1)",
                                                "'+alert(1)+'",
                                                "`${alert(1)}`",
                                                "&lt;b&gt;&#60;",
                                                "javascript:alert(1)",
                                                "__proto__",
                                                "constructor.prototype",
                                                "\\u003cscript\\u003e",
                                                "a\nb\r\tc",
                                                std::string("nul\0inside", 10),
                                                "\x1b[31mred",
                                                "\xE2\x80\xAE"
                                                "gnp.exe",  // right-to-left override
                                                "\xE2\x81\xA6"
                                                "isolate\xE2\x81\xA9",  // isolates
                                                "zero\xE2\x80\x8Bwidth",
                                                "line\xE2\x80\xA8separator\xE2\x80\xA9",
                                                "\xFF\xFE not UTF-8",
                                                "\xED\xA0\x80 lone surrogate",
                                                "h\xC3\xA4user \xF0\x9F\x98\x80",
                                                std::string(100'000, 'x'),
                                                "@DATA@",
                                                "@SCRIPT@"};

TEST(Page, HostileNamesAreTextAndVisible) {
  FakeReader reader;
  ValueList values;
  for (const std::string& name : kHostileNames) {
    reader.tensor<float>(name, DType::kFloat32, {1}, {1});
    reader.object("object " + name, name);
    reader.bend().files.push_back(name);
    values.push_back(Value(printable(name)));
  }
  reader.common(Value::dict({{"args", Value::list(values)}, {kHostileNames[3], kHostileNames[3]}}));
  const PageData page = gather_page(reader.write(), {.title = kHostileNames[3]});
  const std::string html = page_html(page);
  const Value data = data_of(html);
  std::multiset<std::string> shown, expected;
  for (const std::string& name : names(data.at("tensors").at("names"))) shown.insert(name);
  for (const std::string& name : kHostileNames) expected.insert(printable(name, 2000));
  EXPECT_EQ(shown, expected);
  EXPECT_EQ(data.at("title").as_str(), kHostileNames[3]);
  // The skeleton's own elements, and nothing else.
  std::size_t scripts = 0;
  for (std::size_t at = html.find("<script"); at != std::string::npos;
       at = html.find("<script", at + 1))
    ++scripts;
  EXPECT_EQ(scripts, 2U);
  EXPECT_THAT(html, Not(HasSubstr("<img")));
}

TEST(Page, TheSameCheckpointGivesTheSameBytes) {
  const auto page = [](int threads) {
    const auto reader = open_checkpoint(golden("mcore-0.16-fully-reshardable-tp2pp2dp2"));
    return page_html(
        gather_page(*reader, {.stats = true, .compare = reader.get(), .threads = threads}));
  };
  EXPECT_EQ(page(1), page(4));
}

/// Returns the parts that a page says it cannot show.
std::vector<std::string> missing_parts(const PageData& page) {
  std::vector<std::string> parts;
  for (const auto& [part, why] : page.missing) parts.push_back(part);
  return parts;
}

TEST(Page, ADamagedCheckpointIsShownAsFarAsItGoes) {
  const TempDir scratch;
  const auto copy = [&](const std::string& name) {
    std::filesystem::copy(golden("mcore-0.14-flattened-tp2pp2dp2"), scratch / name);
    return scratch / name;
  };
  const auto missing = copy("missing");
  std::filesystem::remove(missing / "__2_0.distcp");
  PageData page = gather_page(*open_checkpoint(missing), {.stats = true});
  EXPECT_THAT(missing_parts(page), ElementsAre(HasSubstr("statistics of")));
  ASSERT_TRUE(page.stats);
  EXPECT_GT(page.stats->weights.count, 0U);
  EXPECT_THAT(page.data_files.missing, ElementsAre("__2_0.distcp"));
  EXPECT_FALSE(page.facts.empty());

  const auto common = copy("common");
  std::filesystem::resize_file(common / "common.pt", 100);
  page = gather_page(*open_checkpoint(common), {});
  EXPECT_THAT(missing_parts(page), Contains("arguments"));
  EXPECT_THAT(page.files, Not(IsEmpty()));
  EXPECT_EQ(chunks_of(data_of(page_html(page))).size(), 264U);

  const auto report = copy("report");
  std::ofstream(report / "dckpt_report.json") << "{";
  EXPECT_THAT(missing_parts(gather_page(*open_checkpoint(report), {})),
              ElementsAre("phases of the save"));
}

TEST(Page, WhatCannotBeOpenedHasItsErrorAndItsFiles) {
  const TempDir scratch;
  std::filesystem::copy(golden("mcore-0.14-flattened-tp2pp2dp2"), scratch / "cut");
  std::filesystem::resize_file(scratch / "cut/.metadata", 100);
  const CheckpointError error(ErrorCode::kCorrupt, "the pickle ends too early");
  const Value data = data_of(page_html(gather_unopened(scratch / "cut", "cut", error)));
  EXPECT_FALSE(data.at("verdict").at("opened").as_bool());
  EXPECT_THAT(names(data.at("files").at("names")), Contains("__2_0.distcp"));
}

constexpr std::size_t kChunks = 262'144;
constexpr std::size_t kMostBytes = 5'000'000;

/// Adds a tensor whose chunks are in files of many ranks.
void add(Metadata& metadata, std::string key, Shape shape, const std::vector<Box>& boxes) {
  TensorStorageMetadata tensor{
      .key = std::move(key), .size = shape, .chunks = BoxList(shape.size())};
  for (const Box& box : boxes) {
    tensor.chunks.push_back(box);
    tensor.places.push_back({static_cast<std::uint32_t>(tensor.chunks.size() * 7 % 1024), 0, 4});
  }
  metadata.tensors.push_back(std::move(tensor));
}

Metadata with_files() {
  Metadata metadata;
  for (int rank = 0; rank < 1024; ++rank)
    metadata.files.push_back("__" + std::to_string(rank) + "_0.distcp");
  return metadata;
}

TEST(Page, AGridOf262144ChunksIsSmall) {
  PageData page{.metadata = with_files()};
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 64 * 64 * 64; ++i)
    boxes.push_back({{i / 4096 * 2, i / 64 % 64 * 3, i % 64 * 4}, {2, 3, 4}});
  add(page.metadata, "w", {128, 192, 256}, boxes);
  ASSERT_THAT(boxes, SizeIs(kChunks));
  EXPECT_LT(page_html(page).size(), kMostBytes / 5);
}

TEST(Page, AnyBoxesOf262144ChunksFit) {
  PageData page{.metadata = with_files()};
  for (std::int64_t layer = 0; layer < 4096; ++layer) {
    std::vector<Box> boxes;  // of flattened ranges: rows that begin and end anywhere
    for (std::int64_t i = 0; i < 64; ++i)
      boxes.push_back({{i * 256 + layer % 200 + i % 3, i % 2 * 1000 + layer}, {100 + i, 9000 + i}});
    add(page.metadata,
        "optimizer.state.exp_avg.decoder.layers." + std::to_string(layer) + ".mlp.weight",
        {16777, 16777}, boxes);
  }
  const std::string html = page_html(page);
  EXPECT_LT(html.size(), kMostBytes - 500'000);  // statistics and arguments need some
  EXPECT_EQ(data_of(html).at("tensors").at("cuts_left_out").as_int(), 0);
}

TEST(Page, BeyondTheLimitBoxesAreLeftOutAndCounted) {
  PageData page{.metadata = with_files()};
  for (std::int64_t tensor = 0; tensor < 2; ++tensor) {
    std::vector<Box> boxes;  // of any place, in a space that has no grid
    for (std::int64_t i = 0; i < 200'000; ++i)
      boxes.push_back({{i * 100'003 + tensor, i * 7}, {100'000, 1'000'000 + i}});
    add(page.metadata, "w" + std::to_string(tensor), {std::int64_t{1} << 40, 1 << 30}, boxes);
  }
  const Value tensors = data_of(page_html(page)).at("tensors");
  EXPECT_EQ(tensors.at("cuts_left_out").as_int(), 2);
  EXPECT_EQ(numbers(tensors.at("owner")).size(), 400'000U);
}

TEST(Page, TensorsOfOneChunkEachFit) {
  PageData page{.metadata = with_files()};
  for (std::size_t i = 0; i < kChunks; ++i)
    add(page.metadata,
        "decoder.layers." + std::to_string(i / 2048) + ".mlp.experts.local_experts." +
            std::to_string(i / 4 % 512) + ".linear_fc" + std::to_string(i % 4) + ".weight",
        {4096, 2048}, {{{0, 0}, {4096, 2048}}});
  const std::string html = page_html(page);
  EXPECT_LT(html.size(), kMostBytes);
  EXPECT_THAT(chunks_of(data_of(html)), SizeIs(kChunks));
}

/// As zarr has them.
TEST(Page, ChunksInFilesOfTheirOwnFit) {
  PageData page;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 64 * 64 * 64; ++i) {
    boxes.push_back({{i / 4096, i / 64 % 64, i % 64}, {1, 1, 1}});
    page.metadata.files.push_back("decoder.layers.mlp.weight/" + std::to_string(i / 4096) + "." +
                                  std::to_string(i / 64 % 64) + "." + std::to_string(i % 64));
    page.files.push_back({page.metadata.files.back(), 100'000 + static_cast<std::uint64_t>(i)});
  }
  add(page.metadata, "decoder.layers.mlp.linear_fc1.weight", {64, 64, 64}, boxes);
  for (std::uint32_t i = 0; i < kChunks; ++i) page.metadata.tensors[0].places[i].file = i;
  EXPECT_LT(page_html(page).size(), kMostBytes);
}

TEST(Page, Base64IsThatOfTheStandard) {
  EXPECT_EQ(base64(as_bytes("")), "");
  EXPECT_EQ(base64(as_bytes("f")), "Zg==");
  EXPECT_EQ(base64(as_bytes("fo")), "Zm8=");
  EXPECT_EQ(base64(as_bytes("foobar")), "Zm9vYmFy");
  EXPECT_EQ(base64(as_bytes("\xFB\xFF")), "+/8=");
}

}  // namespace
}  // namespace dckpt::page_test
