find_package(GTest REQUIRED)
include(GoogleTest)

# dckpt_test(NAME SOURCES files… [LIBRARIES targets…]): one test program, its cases registered one by one.
function(dckpt_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} dckpt_flags GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE DCKPT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()
