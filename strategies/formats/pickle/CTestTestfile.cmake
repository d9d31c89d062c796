# CMake generated Testfile for 
# Source directory: /tmp/apick/proj/strategies/formats/pickle
# Build directory: /tmp/apick/proj/strategies/formats/pickle
# 
# This file includes the relevant testing commands required for 
# testing this directory and lists subdirectories to be tested as well.
