# What users link, under the same names in this build and after installation, and the package that
# find_package(dckpt) finds.
#
#   dckpt::core     the library, without libtorch:  #include <dckpt/dist_checkpointing.h>
#   dckpt::cli      the tool as a function:         #include <dckpt/cli.h>
#   dckpt::testing  checks for code of your own:    #include <dckpt/testing.h>
#   dckpt::torch    the same with torch tensors:    #include <dckpt/torch.h>   (where libtorch was found)
#   dckpt::cuda     tensors in GPU memory:          #include <dckpt/cuda.h>    (where the CUDA runtime was found)
#   dckpt::nccl     ranks that talk over NCCL:      #include <dckpt/nccl.h>    (where NCCL was found)
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/dckpt")
add_custom_target(dckpt_installed)  # builds what is installed

# dckpt_library(NAME EXPORT set [LAYERS layers…] LINKS targets…): dckpt::NAME, made of layers. With
# BUILD_SHARED_LIBS it is one library of their objects, else users link the layers, which are static
# libraries.
function(dckpt_library name)
  cmake_parse_arguments(arg "" "EXPORT" "LAYERS;LINKS" ${ARGN})
  set(target dckpt_${name})
  set(installed ${target})
  if(BUILD_SHARED_LIBS AND arg_LAYERS)
    set(scope PUBLIC)
    add_library(${target} SHARED)
    foreach(layer IN LISTS arg_LAYERS)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:dckpt_${layer}>)
    endforeach()
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:dckpt_flags>)
    add_dependencies(dckpt_installed ${target})
    if(NOT DCKPT_SANITIZE)
      target_link_options(${target} PRIVATE -Wl,--no-undefined)
    endif()
    string(REPLACE dckpt_core dckpt file_name ${target})
    set_target_properties(${target} PROPERTIES
      OUTPUT_NAME ${file_name} LINKER_LANGUAGE CXX INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON
      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
    foreach(layer IN LISTS arg_LAYERS)
      target_link_libraries(${target} INTERFACE dckpt_${layer})
      set_target_properties(dckpt_${layer} PROPERTIES EXPORT_NAME ${layer})
      list(APPEND installed dckpt_${layer})
      add_dependencies(dckpt_installed dckpt_${layer})
    endforeach()
  endif()
  target_include_directories(${target} ${scope} "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR};${PROJECT_SOURCE_DIR}/include>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_LINKS})
  add_library(dckpt::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${installed} EXPORT ${arg_EXPORT} ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endfunction()

set(_core mapping configs strategies dist_checkpointing)
set(_cli tool)
if(BUILD_SHARED_LIBS)  # the commands use what is hidden outside of the library
  list(APPEND _core ${_cli})
  set(_cli "")
endif()
dckpt_library(core EXPORT dckptTargets LAYERS ${_core} LINKS Boost::headers)
dckpt_library(cli EXPORT dckptTargets LAYERS ${_cli} LINKS dckpt_core)
dckpt_library(testing EXPORT dckptTargets LAYERS conformance LINKS dckpt_core)
if(BUILD_SHARED_LIBS)
  foreach(_layer IN LISTS _core)  # for the libraries that they use; their objects are in already
    target_link_libraries(dckpt_core PRIVATE dckpt_${_layer})
  endforeach()
endif()
install(EXPORT dckptTargets NAMESPACE dckpt:: DESTINATION "${_package}")
if(DckptTorch_FOUND)
  dckpt_library(torch EXPORT dckptTorchTargets LAYERS mapping_torch comm_c10d LINKS dckpt_core DckptTorch::torch)
  install(EXPORT dckptTorchTargets NAMESPACE dckpt:: DESTINATION "${_package}")
  install(FILES cmake/FindDckptTorch.cmake DESTINATION "${_package}")
endif()
if(DCKPT_WITH_CUDA)
  dckpt_library(cuda EXPORT dckptCudaTargets LAYERS device_cuda LINKS dckpt_core DckptCuda::cudart)
  install(EXPORT dckptCudaTargets NAMESPACE dckpt:: DESTINATION "${_package}")
endif()
if(DCKPT_WITH_CUDA OR DckptNccl_FOUND)
  install(FILES cmake/FindDckptCuda.cmake DESTINATION "${_package}")
endif()
if(DckptNccl_FOUND)
  dckpt_library(nccl EXPORT dckptNcclTargets LAYERS comm_nccl LINKS dckpt_core DckptNccl::nccl)
  install(EXPORT dckptNcclTargets NAMESPACE dckpt:: DESTINATION "${_package}")
  install(FILES cmake/FindDckptNccl.cmake DESTINATION "${_package}")
endif()

if(TARGET dckpt)
  file(RELATIVE_PATH _libraries "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  set_target_properties(dckpt PROPERTIES INSTALL_RPATH "$ORIGIN/${_libraries}")
  add_dependencies(dckpt_installed dckpt)
  install(TARGETS dckpt RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

# Users find <dckpt/…> and nothing else: what these headers include is below dckpt/detail.
file(GLOB DCKPT_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" include/dckpt/*.h)
if(NOT DckptTorch_FOUND)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/torch.h)
endif()
if(NOT DCKPT_WITH_CUDA)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/cuda.h)
endif()
if(NOT DckptNccl_FOUND)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/nccl.h)
endif()
# Their reference: cmake --build … --target docs
find_program(DCKPT_DOXYGEN doxygen)
set(DCKPT_API_REFERENCE ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
    -DDOXYGEN=$<$<BOOL:${DCKPT_DOXYGEN}>:${DCKPT_DOXYGEN}>)
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(docs COMMAND ${DCKPT_API_REFERENCE} -DOUTPUT=${PROJECT_BINARY_DIR}/docs
                                 -P ${PROJECT_SOURCE_DIR}/cmake/ApiReference.cmake VERBATIM)
endif()

set(_stage "${PROJECT_BINARY_DIR}/installed_headers")
install(CODE "
  set(SOURCE [[${PROJECT_SOURCE_DIR}]])
  set(STAGE [[${_stage}]])
  set(PUBLIC_HEADERS [[${DCKPT_PUBLIC_HEADERS}]])
  include([[${PROJECT_SOURCE_DIR}/cmake/StageHeaders.cmake]])")
install(DIRECTORY "${_stage}/dckpt" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY configs/policies configs/maps DESTINATION "${CMAKE_INSTALL_DATADIR}/dckpt")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

configure_package_config_file(cmake/dckptConfig.cmake.in "${PROJECT_BINARY_DIR}/dckptConfig.cmake" INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/dckptConfig.cmake" "${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" DESTINATION "${_package}")
