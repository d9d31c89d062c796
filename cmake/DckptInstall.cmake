# What users link, under the same names in this build and after installation, and the package that find_package(dckpt) finds.
#
#   dckpt::core    the library, without libtorch:  #include <dckpt/dist_checkpointing.h>
#   dckpt::cli     the tool as a function:        #include <dckpt/cli.h>
#   dckpt::torch   the same with torch tensors:    #include <dckpt/torch.h>   (where libtorch was found)
#   dckpt::nccl    ranks that talk over NCCL:      #include <dckpt/nccl.h>    (where NCCL was found)
include(CMakePackageConfigHelpers)

add_library(dckpt_core INTERFACE)
target_link_libraries(dckpt_core INTERFACE dckpt_dist_checkpointing)
target_include_directories(dckpt_core INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
add_library(dckpt::core ALIAS dckpt_core)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/dckpt")

# Users find <dckpt/…> and nothing else: the headers of the layers are installed below dckpt/detail,
# and include each other from there.
set(_layers mapping configs strategies dist_checkpointing)
function(_install_headers)  # REGEX of their paths in the tree, INCLUDE or EXCLUDE
  string(CONFIGURE [[
    set(SOURCE "@PROJECT_SOURCE_DIR@")
    set(DESTINATION "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/@CMAKE_INSTALL_INCLUDEDIR@/dckpt/detail")
    set(LAYERS "@_layers@")
    set(SELECTION "@ARGN@")
    include("@PROJECT_SOURCE_DIR@/cmake/InstallHeaders.cmake")]] script @ONLY)
  install(CODE "${script}")
endfunction()
set(_edges "^(mapping/torch|strategies/comm/(c10d|nccl))/")
_install_headers(EXCLUDE "${_edges}")
install(DIRECTORY configs/policies DESTINATION "${CMAKE_INSTALL_DATADIR}/dckpt")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY include/dckpt DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" PATTERN torch.h EXCLUDE PATTERN nccl.h EXCLUDE)

foreach(_layer core ${_layers} cli)
  set_target_properties(dckpt_${_layer} PROPERTIES EXPORT_NAME ${_layer})
  install(TARGETS dckpt_${_layer} EXPORT dckptTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endforeach()
install(EXPORT dckptTargets NAMESPACE dckpt:: DESTINATION "${_package}")
if(TARGET dckpt)
  install(TARGETS dckpt RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

if(DckptTorch_FOUND)
  add_library(dckpt_torch INTERFACE)
  target_link_libraries(dckpt_torch INTERFACE dckpt_core dckpt_mapping_torch dckpt_comm_c10d)
  add_library(dckpt::torch ALIAS dckpt_torch)
  set_target_properties(dckpt_torch PROPERTIES EXPORT_NAME torch)
  set_target_properties(dckpt_mapping_torch PROPERTIES EXPORT_NAME mapping_torch)
  set_target_properties(dckpt_comm_c10d PROPERTIES EXPORT_NAME comm_c10d)
  install(TARGETS dckpt_torch dckpt_mapping_torch dckpt_comm_c10d EXPORT dckptTorchTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT dckptTorchTargets NAMESPACE dckpt:: DESTINATION "${_package}")
  _install_headers(INCLUDE "^(mapping/torch/|strategies/comm/c10d/process_group[.]h)")
  install(FILES include/dckpt/torch.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt")
  install(FILES cmake/FindDckptTorch.cmake DESTINATION "${_package}")
endif()

if(DckptNccl_FOUND)
  add_library(dckpt_nccl INTERFACE)
  target_link_libraries(dckpt_nccl INTERFACE dckpt_core dckpt_comm_nccl)
  add_library(dckpt::nccl ALIAS dckpt_nccl)
  set_target_properties(dckpt_nccl PROPERTIES EXPORT_NAME nccl)
  set_target_properties(dckpt_comm_nccl PROPERTIES EXPORT_NAME comm_nccl)
  install(TARGETS dckpt_nccl dckpt_comm_nccl EXPORT dckptNcclTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT dckptNcclTargets NAMESPACE dckpt:: DESTINATION "${_package}")
  _install_headers(INCLUDE "^strategies/comm/nccl/communicator[.]h")
  install(FILES include/dckpt/nccl.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt")
  install(FILES cmake/FindDckptNccl.cmake DESTINATION "${_package}")
endif()

configure_package_config_file(cmake/dckptConfig.cmake.in "${PROJECT_BINARY_DIR}/dckptConfig.cmake" INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/dckptConfig.cmake" "${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" DESTINATION "${_package}")
