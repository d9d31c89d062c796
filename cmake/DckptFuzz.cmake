# dckpt_fuzz(NAME LIBRARIES targets…): the fuzz target in NAME_fuzz.cpp.
# With DCKPT_BUILD_FUZZERS it becomes the libFuzzer program NAME_fuzz. With DCKPT_BUILD_TESTS it becomes NAME_fuzz_replay, an
# ordinary test that runs every file of regress/NAME, and prefixes of it, through the same function with any compiler.
function(dckpt_fuzz name)
  cmake_parse_arguments(arg "" "" "LIBRARIES" ${ARGN})
  if(DCKPT_BUILD_FUZZERS)
    add_executable(${name}_fuzz ${name}_fuzz.cpp)
    target_link_libraries(${name}_fuzz PRIVATE ${arg_LIBRARIES} dckpt_flags)
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  endif()
  if(DCKPT_BUILD_TESTS)
    add_executable(${name}_fuzz_replay ${name}_fuzz.cpp replay.cpp)
    target_link_libraries(${name}_fuzz_replay PRIVATE ${arg_LIBRARIES} dckpt_flags)
    add_test(NAME fuzz_regress.${name} COMMAND ${name}_fuzz_replay "${CMAKE_CURRENT_SOURCE_DIR}/regress/${name}")
    set_tests_properties(fuzz_regress.${name} PROPERTIES TIMEOUT 300)
  endif()
endfunction()
