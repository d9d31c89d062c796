file(REMOVE_RECURSE
  "../../../../bin/strategies_formats_pickle_test"
  "../../../../bin/strategies_formats_pickle_test.pdb"
  "CMakeFiles/strategies_formats_pickle_test.dir/golden_test.cpp.o"
  "CMakeFiles/strategies_formats_pickle_test.dir/golden_test.cpp.o.d"
  "CMakeFiles/strategies_formats_pickle_test.dir/read_graph_test.cpp.o"
  "CMakeFiles/strategies_formats_pickle_test.dir/read_graph_test.cpp.o.d"
  "CMakeFiles/strategies_formats_pickle_test.dir/rewrite_test.cpp.o"
  "CMakeFiles/strategies_formats_pickle_test.dir/rewrite_test.cpp.o.d"
  "CMakeFiles/strategies_formats_pickle_test.dir/value_from_graph_test.cpp.o"
  "CMakeFiles/strategies_formats_pickle_test.dir/value_from_graph_test.cpp.o.d"
  "CMakeFiles/strategies_formats_pickle_test.dir/writer_test.cpp.o"
  "CMakeFiles/strategies_formats_pickle_test.dir/writer_test.cpp.o.d"
  "strategies_formats_pickle_test[1]_tests.cmake"
)

# Per-language clean rules from dependency scanning.
foreach(lang CXX)
  include(CMakeFiles/strategies_formats_pickle_test.dir/cmake_clean_${lang}.cmake OPTIONAL)
endforeach()
