# Steps of the install test; any failing step fails it.
cmake_minimum_required(VERSION 3.22)

function(run)
  list(JOIN ARGN " " line)
  message(STATUS "${line}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${line}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
run(${CMAKE_COMMAND} -S "${CONSUMER}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${WORK}/prefix"
    "-DEXAMPLES=${EXAMPLES}" "-DWITH_TORCH=${TORCH}" "-DDCKPT_TORCH_ROOT=${TORCH_ROOT}")
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/build/quickstart" "${WORK}/quickstart")
run("${WORK}/prefix/bin/dckpt" verify "${WORK}/quickstart")
run("${WORK}/build/raw_strategy" "${EXAMPLES}/raw_strategy/run.yaml" "${WORK}/raw_strategy")
if(TORCH)
  run("${WORK}/build/with_torch" "${WORK}/with_torch")
endif()
