# Builds the core alone, as a trainer's subproject: no source of operations, formats or maps may be
# compiled, no library of theirs linked, and the program must work.
cmake_minimum_required(VERSION 3.22)
include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

file(REMOVE_RECURSE "${WORK}")
run(${CMAKE_COMMAND} -S "${TRAINER}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -DCMAKE_CXX_FLAGS=-O0 "-DDCKPT_FOLDER=${SOURCE}")
file(GLOB_RECURSE batches "${WORK}/build/dckpt/batches/*.cpp")
file(READ "${WORK}/build/compile_commands.json" compiled)
foreach(batch IN LISTS batches)
  file(READ "${batch}" text)
  string(APPEND compiled "${text}")
endforeach()
string(REGEX MATCHALL "[\"/](operations|conformance|tools|migration|configs/maps|strategies/(views|zarr|legacy_torch|local|torch_checkpointing|safetensors|formats/safetensors))/[a-z0-9_/]+[.]cpp"
       foreign "${compiled}")
if(foreign)
  list(JOIN foreign "\n  " foreign)
  message(FATAL_ERROR "The core compiles what is not of it:\n  ${foreign}")
elseif(NOT compiled MATCHES "dist_checkpointing/checkpointer/checkpointer[.]cpp")
  message(FATAL_ERROR "The core does not compile Checkpointer")
endif()

run(${CMAKE_COMMAND} --build "${WORK}/build" --target trainer)
execute_process(COMMAND ldd "${WORK}/build/trainer" OUTPUT_VARIABLE linked COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "lib(crypto|re2|zstd|isal)[.]so" unasked "${linked}")
if(unasked)
  message(FATAL_ERROR "Nobody has asked for ${unasked}:\n${linked}")
endif()
run("${WORK}/build/trainer" "${WORK}/checkpoints" "${SOURCE}/tests/data/checkpoints/dcp-hf-safetensors"
    "${SOURCE}/tests/data/checkpoints/dcp-zstd-torch2.15/ckpt")
