find_package(GTest REQUIRED)
include(GoogleTest)

# What nearly every test includes.
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/tests_precompiled.cpp" CONTENT "int main() {}" @ONLY)
add_executable(tests_precompiled "${CMAKE_CURRENT_BINARY_DIR}/tests_precompiled.cpp")
target_link_libraries(tests_precompiled PRIVATE dckpt_strategies dckpt_flags GTest::gmock)
target_compile_options(tests_precompiled PRIVATE -O0)
target_precompile_headers(tests_precompiled PRIVATE
  <gmock/gmock.h> <gtest/gtest.h> <chrono> <filesystem> <functional> <map> <memory> <numeric> <set> <span> <string>
  <thread> <unordered_map> <variant> <vector>
  <mapping/base/format.h> <mapping/base/text.h>
  <mapping/state/sharded_tensor.h> <configs/policy/options.h>
  <strategies/comm/communicator.h> <strategies/contract/reader.h>
  <strategies/storage/location.h>)

add_custom_target(tests_without_programs)  # builds what the other tests run: the tool, replays of inputs from fuzzing
if(TARGET dckpt)
  add_dependencies(tests_without_programs dckpt)
endif()

# dckpt_test(NAME SOURCES files… [LIBRARIES targets…] [LABELS labels…] [SHARDS n]): one test program, its cases registered one by one, or with
# DCKPT_TEST_PROGRAMS as the test program.NAME, or as several, each with a share of the cases. These write a report each, gtest/TEST.xml, from which
# scripts/test counts the cases.
# Labels: `oracle` needs Python and Megatron-Core (see scripts/bootstrap); `threads` is run under ThreadSanitizer too; `bytes` reads foreign bytes or
# shares memory with other processes, and is run under AddressSanitizer each time, the others in turns; `gpu` skips where there is none.
# The target tests_labelled_LABEL builds all programs with that label.
# Programs run in the source tree, so that the path of the test data is the same in every checkout and a compiler cache can serve them all.
function(dckpt_test name)
  cmake_parse_arguments(arg "" "SHARDS" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  if(NOT "${arg_LIBRARIES}" MATCHES "torch|c10d|cuda|nccl|Cuda|Nccl")  # these have flags of their own
    target_precompile_headers(${name} REUSE_FROM tests_precompiled)
  endif()
  target_compile_options(${name} PRIVATE -O0)  # tests take longer to compile than to run
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} dckpt_flags GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE DCKPT_TEST_DATA="tests/data")
  dckpt_batches(${name})
  if(DCKPT_TEST_PROGRAMS)
    set(shards 1)
    if(arg_SHARDS)
      set(shards ${arg_SHARDS})
    endif()
    foreach(shard RANGE 1 ${shards})
      set(test program.${name})
      if(arg_SHARDS)
        string(APPEND test .${shard})
      endif()
      math(EXPR index "${shard} - 1")
      add_test(NAME ${test} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
      set_tests_properties(${test} PROPERTIES TIMEOUT 1800 COST ${shards} LABELS "${arg_LABELS}"
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index};GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/gtest/${test}.xml")
    endforeach()
  else()
    gtest_discover_tests(${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
  endif()
  foreach(label IN LISTS arg_LABELS)
    if(NOT TARGET tests_labelled_${label})
      add_custom_target(tests_labelled_${label})
    endif()
    add_dependencies(tests_labelled_${label} ${name})
  endforeach()
endfunction()
