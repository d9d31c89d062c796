
# Consider dependencies only in project.
set(CMAKE_DEPENDS_IN_PROJECT_ONLY OFF)

# The set of languages for which implicit dependencies are needed:
set(CMAKE_DEPENDS_LANGUAGES
  )

# The set of dependency files which are needed:
set(CMAKE_DEPENDS_DEPENDENCY_FILES
  "/tmp/apick/proj/tests/strategies/formats/pickle/golden_test.cpp" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/golden_test.cpp.o" "gcc" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/golden_test.cpp.o.d"
  "/tmp/apick/proj/tests/strategies/formats/pickle/read_graph_test.cpp" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/read_graph_test.cpp.o" "gcc" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/read_graph_test.cpp.o.d"
  "/tmp/apick/proj/tests/strategies/formats/pickle/rewrite_test.cpp" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/rewrite_test.cpp.o" "gcc" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/rewrite_test.cpp.o.d"
  "/tmp/apick/proj/tests/strategies/formats/pickle/value_from_graph_test.cpp" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/value_from_graph_test.cpp.o" "gcc" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/value_from_graph_test.cpp.o.d"
  "/tmp/apick/proj/tests/strategies/formats/pickle/writer_test.cpp" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/writer_test.cpp.o" "gcc" "tests/strategies/formats/pickle/CMakeFiles/strategies_formats_pickle_test.dir/writer_test.cpp.o.d"
  )

# Targets to which this target links.
set(CMAKE_TARGET_LINKED_INFO_FILES
  "/tmp/apick/proj/CMakeFiles/dckpt_strategies.dir/DependInfo.cmake"
  "/tmp/apick/proj/mapping/CMakeFiles/dckpt_mapping.dir/DependInfo.cmake"
  )

# Fortran module output directory.
set(CMAKE_Fortran_TARGET_MODULE_DIR "")
