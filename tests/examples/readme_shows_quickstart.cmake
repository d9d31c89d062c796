# cmake -DROOT=<source> -P readme_shows_quickstart.cmake: README's C++ block is examples/quickstart.cpp, character by character.
cmake_minimum_required(VERSION 3.22)

file(READ "${ROOT}/README.md" readme)
file(READ "${ROOT}/examples/quickstart.cpp" example)
string(FIND "${readme}" "```cpp\n${example}```\n" position)
if(position EQUAL -1)
  message(FATAL_ERROR "README.md does not show examples/quickstart.cpp as it is; copy it between ```cpp and ```")
endif()
