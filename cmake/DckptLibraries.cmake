# What users link, under the same names in this build, in a parent project and after installation.
#
#   dckpt::core        what a job runs: saves, loads, planners, policies, Checkpointer; torch_dist and DCP
#                      #include <dckpt/dist_checkpointing.h>
#   dckpt::formats     the other formats, which it registers:    #include <dckpt/formats.h>
#   dckpt::maps        maps of keys for load.map, registered:    #include <dckpt/maps.h>
#   dckpt::transfer    tensors between layouts in memory:        #include <dckpt/transfer.h>
#   dckpt::operations  inspect, convert, upkeep, json:           #include <dckpt/operations.h>
#   dckpt::all         all of these
#   dckpt::cli         the tool as a function:                   #include <dckpt/cli.h>
#   dckpt::testing     checks for code of your own:              #include <dckpt/testing.h>
#   dckpt::torch       the same with torch tensors:    #include <dckpt/torch.h>   (where libtorch was found)
#   dckpt::cuda        tensors in GPU memory:          #include <dckpt/cuda.h>    (where the CUDA runtime was found)
#   dckpt::nccl        ranks that talk over NCCL:      #include <dckpt/nccl.h>    (where NCCL was found)
#   dckpt::mpi         ranks that talk over MPI:       #include <dckpt/mpi.h>     (where MPI was found)
add_custom_target(dckpt_installed)  # builds what is installed

# dckpt_library(NAME EXPORT set [LAYERS layers…] LINKS targets…): dckpt::NAME, made of layers. With
# BUILD_SHARED_LIBS it is one library of their objects, if it has any, else users link the layers, which
# are static libraries.
function(dckpt_library name)
  cmake_parse_arguments(arg "" "EXPORT" "LAYERS;LINKS" ${ARGN})
  set(target dckpt_library_${name})
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
    set(file_name dckpt)
    if(NOT name STREQUAL "core")
      set(file_name dckpt_${name})
    endif()
    set_target_properties(${target} PROPERTIES
      OUTPUT_NAME ${file_name} LINKER_LANGUAGE CXX INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON
      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
    foreach(layer IN LISTS arg_LAYERS)
      target_link_libraries(${target} INTERFACE dckpt_${layer})
      set_target_properties(dckpt_${layer} PROPERTIES EXPORT_NAME layer_${layer})
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

# What each library adds to those that it links.
set(_layers_core mapping configs strategies dist_checkpointing)
set(_layers_transfer transfer)
set(_layers_formats views formats)
set(_layers_maps config_maps maps)
set(_layers_operations migration operations)
set(_layers_cli tool)
set(_links_core Boost::headers)
set(_links_transfer dckpt_library_core)
set(_links_formats dckpt_library_core)
set(_links_maps dckpt_library_formats)
set(_links_operations dckpt_library_maps dckpt_library_transfer)
set(_links_cli dckpt_library_operations)
set(DCKPT_LIBRARIES core transfer)
if(DCKPT_FORMATS_LIBRARY)
  list(APPEND DCKPT_LIBRARIES formats)
endif()
if(DCKPT_MAPS)
  list(APPEND DCKPT_LIBRARIES maps)
endif()
if(DCKPT_OPERATIONS)
  list(APPEND DCKPT_LIBRARIES operations cli)
endif()
set(ALL_LAYERS "")  # each uses those before it
foreach(_library IN LISTS DCKPT_LIBRARIES)
  list(APPEND ALL_LAYERS ${_layers_${_library}})
endforeach()
if(BUILD_SHARED_LIBS)  # one library has all, as its parts use what is hidden outside of it
  set(_layers_core ${ALL_LAYERS})
endif()
foreach(_library IN LISTS DCKPT_LIBRARIES)
  if(BUILD_SHARED_LIBS AND NOT _library STREQUAL "core")
    set(_layers_${_library} "")
  endif()
  dckpt_library(${_library} EXPORT dckptTargets LAYERS ${_layers_${_library}} LINKS ${_links_${_library}})
endforeach()
list(TRANSFORM DCKPT_LIBRARIES PREPEND dckpt_library_ OUTPUT_VARIABLE _libraries)
list(REMOVE_ITEM _libraries dckpt_library_cli)
dckpt_library(all EXPORT dckptTargets LINKS ${_libraries})
if(TARGET dckpt_conformance)
  dckpt_library(testing EXPORT dckptTargets LAYERS conformance LINKS dckpt_library_core)
endif()
if(BUILD_SHARED_LIBS)
  foreach(_layer IN LISTS ALL_LAYERS)  # for the libraries that they use; their objects are in already
    target_link_libraries(dckpt_library_core PRIVATE dckpt_${_layer})
  endforeach()
endif()
if(NOT BUILD_SHARED_LIBS)
  target_link_options(dckpt_library_core INTERFACE LINKER:--gc-sections)
endif()
# A static library brings an object only where something asks for it: the symbols of what registers.
foreach(_registered formats maps)
  if(TARGET dckpt_${_registered} AND NOT BUILD_SHARED_LIBS)
    target_link_options(dckpt_${_registered} INTERFACE "LINKER:-u,dckpt_${_registered}_are_linked")
  endif()
endforeach()
if(DckptTorch_FOUND)
  dckpt_library(torch EXPORT dckptTorchTargets LAYERS mapping_torch comm_c10d facade_torch LINKS dckpt_library_core DckptTorch::torch)
endif()
if(DCKPT_WITH_CUDA)
  dckpt_library(cuda EXPORT dckptCudaTargets LAYERS device_cuda LINKS dckpt_library_core DckptCuda::cudart)
endif()
if(DckptNccl_FOUND)
  dckpt_library(nccl EXPORT dckptNcclTargets LAYERS comm_nccl LINKS dckpt_library_core DckptNccl::nccl)
endif()
if(DckptMpi_FOUND)
  dckpt_library(mpi EXPORT dckptMpiTargets LAYERS comm_mpi LINKS dckpt_library_core DckptMpi::mpi)
endif()
foreach(_program IN ITEMS dckpt dckpt-mpi)
  if(TARGET ${_program})
    add_dependencies(dckpt_installed ${_program})
  endif()
endforeach()
