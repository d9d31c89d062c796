find_package(GTest REQUIRED)
include(GoogleTest)

# dckpt_test(NAME SOURCES files… [LIBRARIES targets…] [LABELS labels…]): one test program, its cases registered one by one.
# Labels: `oracle` needs Python and Megatron-Core (see scripts/bootstrap); `threads` is run under ThreadSanitizer too; `gpu` skips where there is none.
# The target tests_labelled_LABEL builds all programs with that label.
# Programs run in the source tree, so that the path of the test data is the same in every checkout and a compiler cache can serve them all.
function(dckpt_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} dckpt_flags GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE DCKPT_TEST_DATA="tests/data")
  gtest_discover_tests(${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${arg_LABELS}")
  foreach(label IN LISTS arg_LABELS)
    if(NOT TARGET tests_labelled_${label})
      add_custom_target(tests_labelled_${label})
    endif()
    add_dependencies(tests_labelled_${label} ${name})
  endforeach()
endfunction()
