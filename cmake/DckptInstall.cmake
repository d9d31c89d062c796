# Installs what DckptLibraries.cmake lists, the tool, the documentation, and the packages that
# find_package(dckpt) and pkg-config find. Components: `tool` for running dckpt, `development` for
# building with it.
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/dckpt")

if(TARGET dckpt)
  file(RELATIVE_PATH _libraries "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  if(BUILD_SHARED_LIBS)
    set_target_properties(dckpt PROPERTIES INSTALL_RPATH "$ORIGIN/${_libraries}")
  endif()
  install(TARGETS dckpt RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tool)
endif()
install(DIRECTORY configs/policies configs/maps DESTINATION "${CMAKE_INSTALL_DATADIR}/dckpt" COMPONENT tool)
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT tool)
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT tool
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN "*.schema.json")
install(DIRECTORY examples DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)

install(CODE "
  set(SOURCE [[${PROJECT_SOURCE_DIR}]])
  set(STAGE [[${dckpt_staged_headers}]])
  set(PUBLIC_HEADERS [[${DCKPT_PUBLIC_HEADERS}]])
  include([[${PROJECT_SOURCE_DIR}/cmake/StageHeaders.cmake]])" COMPONENT development)
install(DIRECTORY "${dckpt_staged_headers}/dckpt" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)

set(_modules "")
macro(dckpt_export name)  # and the find modules of what it needs
  install(EXPORT dckpt${name}Targets NAMESPACE dckpt:: DESTINATION "${_package}" COMPONENT development)
  list(APPEND _modules ${ARGN})
endmacro()
dckpt_export("" ThirdParty)
if(DckptTorch_FOUND)
  dckpt_export(Torch Torch)
endif()
if(DCKPT_WITH_CUDA)
  dckpt_export(Cuda Cuda)
endif()
if(DckptNccl_FOUND)
  dckpt_export(Nccl Nccl Cuda)
endif()
list(REMOVE_DUPLICATES _modules)
list(TRANSFORM _modules REPLACE "(.+)" "cmake/FindDckpt\\1.cmake")

# What users of static libraries link as well, for CMake and for pkg-config.
set(DCKPT_THIRD_PARTY zstd re2 yaml_cpp)
set(PC_REQUIRES libzstd re2 yaml-cpp libcrypto)
if(DckptThirdParty_isal_FOUND)
  list(APPEND DCKPT_THIRD_PARTY isal)
  list(APPEND PC_REQUIRES libisal)
else()
  list(APPEND PC_REQUIRES zlib)
endif()
configure_package_config_file(cmake/dckptConfig.cmake.in "${PROJECT_BINARY_DIR}/dckptConfig.cmake"
                              INSTALL_DESTINATION "${_package}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/dckptConfig.cmake" "${PROJECT_BINARY_DIR}/dckptConfigVersion.cmake" ${_modules}
        DESTINATION "${_package}" COMPONENT development)

set(PC_LIBRARIES "-ldckpt")
if(BUILD_SHARED_LIBS)
  set(PC_REQUIRES "")
else()
  set(PC_LIBRARIES "")
  foreach(_layer IN LISTS DCKPT_CORE_LAYERS)  # each uses those before it
    string(PREPEND PC_LIBRARIES "-ldckpt_${_layer} ")
  endforeach()
  string(APPEND PC_LIBRARIES "-pthread")
endif()
list(JOIN PC_REQUIRES " " PC_REQUIRES)
file(RELATIVE_PATH PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" PC_PREFIX "${PC_PREFIX}")
configure_file(cmake/dckpt.pc.in "${PROJECT_BINARY_DIR}/dckpt.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/dckpt.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
