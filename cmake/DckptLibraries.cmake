# What users link, under the same names in this build, in a parent project and after installation.
#
#   dckpt::core     the library, without libtorch:  #include <dckpt/dist_checkpointing.h>
#   dckpt::cli      the tool as a function:         #include <dckpt/cli.h>
#   dckpt::testing  checks for code of your own:    #include <dckpt/testing.h>
#   dckpt::torch    the same with torch tensors:    #include <dckpt/torch.h>   (where libtorch was found)
#   dckpt::cuda     tensors in GPU memory:          #include <dckpt/cuda.h>    (where the CUDA runtime was found)
#   dckpt::nccl     ranks that talk over NCCL:      #include <dckpt/nccl.h>    (where NCCL was found)
#   dckpt::mpi      ranks that talk over MPI:       #include <dckpt/mpi.h>     (where MPI was found)
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
  target_include_directories(${target} ${scope} "$<BUILD_INTERFACE:${DCKPT_USERS_INCLUDES}>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_LINKS})
  add_library(dckpt::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  if(DCKPT_INSTALL)
    install(TARGETS ${installed} EXPORT ${arg_EXPORT}
            ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
            LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT tool NAMELINK_COMPONENT development)
  endif()
endfunction()

set(DCKPT_CORE_LAYERS mapping configs strategies migration dist_checkpointing)
set(_cli tool)
if(BUILD_SHARED_LIBS)  # the commands use what is hidden outside of the library
  list(APPEND DCKPT_CORE_LAYERS ${_cli})
  set(_cli "")
endif()
dckpt_library(core EXPORT dckptTargets LAYERS ${DCKPT_CORE_LAYERS} LINKS Boost::headers)
dckpt_library(cli EXPORT dckptTargets LAYERS ${_cli} LINKS dckpt_core)
dckpt_library(testing EXPORT dckptTargets LAYERS conformance LINKS dckpt_core)
if(BUILD_SHARED_LIBS)
  foreach(_layer IN LISTS DCKPT_CORE_LAYERS)  # for the libraries that they use; their objects are in already
    target_link_libraries(dckpt_core PRIVATE dckpt_${_layer})
  endforeach()
endif()
if(DckptTorch_FOUND)
  dckpt_library(torch EXPORT dckptTorchTargets LAYERS mapping_torch comm_c10d facade_torch LINKS dckpt_core DckptTorch::torch)
endif()
if(DCKPT_WITH_CUDA)
  dckpt_library(cuda EXPORT dckptCudaTargets LAYERS device_cuda LINKS dckpt_core DckptCuda::cudart)
endif()
if(DckptNccl_FOUND)
  dckpt_library(nccl EXPORT dckptNcclTargets LAYERS comm_nccl LINKS dckpt_core DckptNccl::nccl)
endif()
if(DckptMpi_FOUND)
  dckpt_library(mpi EXPORT dckptMpiTargets LAYERS comm_mpi LINKS dckpt_core DckptMpi::mpi)
endif()
foreach(_program IN ITEMS dckpt dckpt-mpi)
  if(TARGET ${_program})
    add_dependencies(dckpt_installed ${_program})
  endif()
endforeach()
