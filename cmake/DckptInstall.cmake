# What users link, under the same names in this build and after installation, and the package that find_package(dckpt) finds.
#
#   dckpt::core    the library, without libtorch:  #include <dckpt/dist_checkpointing.h>
#   dckpt::cli     the tool as a function:        #include <dckpt/cli.h>
#   dckpt::torch   the same with torch tensors:    #include <dckpt/torch.h>   (where libtorch was found)
#   dckpt::nccl    ranks that talk over NCCL:      #include <dckpt/nccl.h>    (where NCCL was found)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(dckpt_core INTERFACE)
target_link_libraries(dckpt_core INTERFACE dckpt_dist_checkpointing)
target_include_directories(dckpt_core INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
add_library(dckpt::core ALIAS dckpt_core)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/dckpt")

# Headers keep their places in the tree, below include/dckpt/layers: there they find each other by the paths they have here. That
# folder is searched for headers, so it must hold none that could be meant otherwise (include/dckpt holds an nccl.h).
set(_layers mapping configs strategies dist_checkpointing)
install(DIRECTORY ${_layers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt/layers" FILES_MATCHING PATTERN "*.h" PATTERN mapping/torch EXCLUDE
        PATTERN comm/c10d EXCLUDE PATTERN comm/nccl EXCLUDE)
install(DIRECTORY configs/policies DESTINATION "${CMAKE_INSTALL_DATADIR}/dckpt")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES include/dckpt/cli.h include/dckpt/dist_checkpointing.h include/dckpt/strategy.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt")

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
  install(DIRECTORY mapping/torch DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt/layers/mapping" FILES_MATCHING PATTERN "*.h")
  install(FILES strategies/comm/c10d/process_group.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt/layers/strategies/comm/c10d")
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
  install(FILES strategies/comm/nccl/communicator.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt/layers/strategies/comm/nccl")
  install(FILES include/dckpt/nccl.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dckpt")
  install(FILES cmake/FindDckptNccl.cmake DESTINATION "${_package}")
endif()

configure_package_config_file(cmake/dckptConfig.cmake.in "${PROJECT_BINARY_DIR}/dckptConfig.cmake" INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/dckptConfig.cmake" "${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" DESTINATION "${_package}")
