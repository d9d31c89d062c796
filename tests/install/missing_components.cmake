# What find_package(dckpt) says of a component that is not there.
cmake_minimum_required(VERSION 3.22)

function(expect components text)
  string(MAKE_C_IDENTIFIER "${components}" name)
  set(folder "${WORK}/${name}")
  file(REMOVE_RECURSE "${folder}")
  file(CONFIGURE OUTPUT "${folder}/CMakeLists.txt" @ONLY CONTENT [[
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES CXX)
find_package(dckpt REQUIRED COMPONENTS @components@)
]])
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=DCKPT_TORCH_ROOT --unset=VIRTUAL_ENV
                          ${CMAKE_COMMAND} -S "${folder}" -B "${folder}/build" -G "${GENERATOR}"
                          "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(status EQUAL 0 OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "COMPONENTS ${components}: status ${status}, expected '${text}', found\n${output}")
  endif()
endfunction()

expect("core torhc" "dckpt has no component 'torhc'. its components are core, transfer, formats, maps, operations, all, cli, testing, torch, cuda, nccl, mpi")
file(GLOB_RECURSE torch "${PREFIX}/*/dckptTorchTargets.cmake")
if(torch)
  expect("torch" "component 'torch': libtorch was not found. set DCKPT_TORCH_ROOT")
else()
  expect("torch" "component 'torch': dckpt was built without libtorch")
endif()
