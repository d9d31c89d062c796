# CMake generated Testfile for 
# Source directory: /tmp/apick/proj/tests/strategies/formats/pickle
# Build directory: /tmp/apick/proj/tests/strategies/formats/pickle
# 
# This file includes the relevant testing commands required for 
# testing this directory and lists subdirectories to be tested as well.
include("/tmp/apick/proj/tests/strategies/formats/pickle/strategies_formats_pickle_test[1]_include.cmake")
