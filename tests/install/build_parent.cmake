# Builds the project PARENT twice in one folder, so that objects are compiled once: first it fetches a
# clone of this project's commit, then it has that clone as a subdirectory. What it does not link, it
# does not compile.
cmake_minimum_required(VERSION 3.22)
include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")
execute_process(COMMAND git -C "${SOURCE}" rev-parse HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
  message(STATUS "skipped: ${SOURCE} is not a clone")
  return()
endif()

file(REMOVE_RECURSE "${WORK}")
foreach(fetch IN ITEMS ON OFF)
  run(${CMAKE_COMMAND} -S "${PARENT}" -B "${WORK}" -G "${GENERATOR}" -DFETCH=${fetch} -DCMAKE_BUILD_TYPE=Debug
      "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DBUILD_SHARED_LIBS=${SHARED}"
      "-DDCKPT_REPOSITORY=${SOURCE}" -DDCKPT_TAG=${commit} "-DDCKPT_FOLDER=${WORK}/_deps/dckpt-src"
      -DDCKPT_TORCH=OFF -DDCKPT_CUDA=OFF -DDCKPT_NCCL=OFF -DDCKPT_MPI=OFF)
  run(${CMAKE_COMMAND} --build "${WORK}")
  file(REMOVE_RECURSE "${WORK}/checkpoint")
  run("${WORK}/quickstart" "${WORK}/checkpoint")
  run("${WORK}/by_value")
endforeach()
file(GLOB_RECURSE compiled RELATIVE "${WORK}/_deps/dckpt-build" "${WORK}/_deps/dckpt-build/*.o")
list(LENGTH compiled count)
message(STATUS "${count} objects of dckpt are compiled")
list(FILTER compiled EXCLUDE REGEX "^(mapping|configs|strategies|dist_checkpointing)/CMakeFiles/dckpt_(mapping|configs|strategies|dist_checkpointing)[.]dir/")
if(NOT count OR (compiled AND NOT SHARED))  # a shared library has all of it
  message(FATAL_ERROR "The parent links dckpt::core, and compiles also ${compiled}")
endif()
file(STRINGS "${WORK}/build.ninja" chosen REGEX "fuse-ld" LIMIT_COUNT 1)
if(chosen OR EXISTS "${WORK}/bin")
  message(FATAL_ERROR "The parent's linker or folders were changed: ${chosen}")
endif()
