// Python's pickles that are read and written again must be the same to our reader, and to Python.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include <unistd.h>

#include "tests/strategies/formats/pickle/pickle_files.h"

namespace dckpt::pickle::rewrite_test {
namespace {

using namespace std::string_literals;
using Kind = Value::Kind;

/// Represents persistent ids as storages, whatever they are.
ValueHooks ids_as_storages() {
  ValueHooks hooks;
  hooks.persistent = [](const Value& id) {
    TorchStorage storage;
    storage.type = id.is_str() ? id.as_str() : "tuple";
    return Value(storage);
  };
  return hooks;
}

WriteOptions write_options(int protocol) {
  WriteOptions options;
  options.protocol = protocol;
  options.persistent_id = [](const TorchStorage& storage) {
    return storage.type == "tuple" ? Value::tuple({"storage", 7, "key"}) : Value(storage.type);
  };
  return options;
}

std::vector<std::string> goldens() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(DCKPT_TEST_DATA) + "/pickles")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".pkl") names.push_back(name);
  }
  return names;
}

Value original(const std::string& name) {
  return load(golden(name), ids_as_storages());
}

TEST(Rewrite, OurReaderSeesTheSameValue) {
  for (const std::string& name : goldens()) {
    for (const int protocol : {2, 4}) {
      const Value value = original(name);
      const Bytes rewritten = write_pickle(value, write_options(protocol));
      const Value again = load(rewritten, ids_as_storages());
      if (protocol == 4 ||
          !name.starts_with("stateful")) {  // protocol 2 names a nested class by a call
        EXPECT_EQ(again, value) << name << " at protocol " << protocol;
      }
    }
  }
}

#ifdef DCKPT_TEST_PYTHON
TEST(Rewrite, PythonLoadsTheSameObjects) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("dckpt_rewrite_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  for (const std::string& name : goldens()) {
    for (const int protocol : {2, 4}) {
      const Bytes rewritten = write_pickle(original(name), write_options(protocol));
      std::ofstream(folder / (name + ".w" + std::to_string(protocol) + ".pkl"), std::ios::binary)
          << as_text(rewritten);
    }
  }
  const std::string command = "'" DCKPT_TEST_PYTHON "' '" DCKPT_TEST_SCRIPTS
                              "/same_pickles.py' '" DCKPT_TEST_DATA "/pickles' '" +
                              folder.string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::filesystem::remove_all(folder);
}
#endif

TEST(WritePickle, PlainValuesAreWrittenAsPythonWritesThem) {
  // pickle.dumps([{"a": 1, "b": (1, 2, 3, 4)}, "a", 2**70], 2)
  const Value value = Value::list({Value::dict({{"a", 1}, {"b", Value::tuple({1, 2, 3, 4})}}), "a",
                                   BigInt{to_bytes("\0\0\0\0\0\0\0\0\x40"s)}});
  EXPECT_EQ(
      as_text(write_pickle(value)),
      "\x80\x02]q\0(}q\1(X\1\0\0\0aq\2K\1X\1\0\0\0bq\3(K\1K\2K\3K\4tq\4uh\2\x8A\t\0\0\0\0\0\0\0\0@e."s);
}

TEST(WritePickle, SharedValuesAreWrittenOnceAndEqualOnesTwice) {
  const Value shared = Value::list({1});
  const Value twins = load(write_pickle(Value::list({shared, shared, Value::list({1})})));
  EXPECT_EQ(twins.items()[0].identity(), twins.items()[1].identity());
  EXPECT_NE(twins.items()[0].identity(), twins.items()[2].identity());
}

TEST(Rewrite, TuplesAndArgumentsMayLeadBackToThemselves) {
  // t = ([],); t[0].append(t), and an object whose only argument is a list that holds it
  for (const std::string& pickle :
       {"]q\0h\0\x85q\1a0h\1."s, "cm\nA\nq\0]q\1h\0h\1\x85q\2Rq\3a\x85q\4R0h\3."s}) {
    const Value value = load(pickle);
    ASSERT_NE(value.label(), 0U);
    EXPECT_EQ(load(write_pickle(value)), value);
  }
}

TEST(WritePickle, ReferencesToWhatIsLeftOutAreRefused) {
  const Value cut = load("]q\1]q\2h\1aa.").items()[0];
  EXPECT_THAT(error_of([&] { write_pickle(cut); }).what(),
              ::testing::HasSubstr("refers back to an object that is not written with it"));
}

TEST(WritePickle, LongSharedTextsAreWrittenOnce) {
  const Value text = std::string(10000, 'x');
  EXPECT_LT(write_pickle(Value::list({text, text, text})).size(), 11000U);
}

TEST(WritePickle, TensorsAndStoragesAreWrittenAsTheCallerSays) {
  WriteOptions options;
  options.reduce_tensor = [](const Tensor&) {
    Opaque call;
    call.callable = Global{"torch._utils", "_rebuild_tensor_v2"};
    call.args = Value::tuple({TorchStorage{.type = "FloatStorage"}, 0});
    return Value(call);
  };
  options.persistent_id = [](const TorchStorage& storage) {
    return Value::tuple({"storage", Global{"torch", storage.type}});
  };
  const Value tensor = Tensor();
  const Bytes pickle = write_pickle(Value::list({tensor, tensor}), options);
  std::vector<Value> ids;
  ValueHooks hooks;
  hooks.persistent = [&](const Value& id) {
    ids.push_back(id);
    return Value("storage");
  };
  const Value read = load(pickle, hooks);
  EXPECT_THAT(ids,
              ::testing::ElementsAre(Value::tuple({"storage", Global{"torch", "FloatStorage"}})));
  EXPECT_EQ(read.items()[0].as_opaque().args, Value::tuple({"storage", 0}));
  EXPECT_EQ(read.items()[0].identity(), read.items()[1].identity());
}

TEST(WritePickle, TemporariesOfCallbacksAreNotMistakenForEachOther) {
  WriteOptions options;
  int calls = 0;
  options.reduce_tensor = [&](const Tensor&) { return Value::list({++calls}); };
  ValueList tensors;
  for (int i = 0; i < 100; ++i) tensors.emplace_back(Tensor());
  const Value read = load(write_pickle(Value::list(tensors), options));
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(read.items()[i], Value::list({i + 1}));
}

TEST(WritePickle, WhatHasNoPickleIsRefused) {
  EXPECT_EQ(error_of([] { write_pickle(Value(Tensor())); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { write_pickle(Value(TorchStorage{})); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(WritePickle, DepthIsLimited) {
  Value deep;
  for (int i = 0; i < 1100; ++i) deep = Value::list({deep});
  EXPECT_NO_THROW(write_pickle(deep));
  EXPECT_EQ(error_of([&] { write_pickle(Value::list({deep})); }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::pickle::rewrite_test
