# What cpack makes of the build that scripts/package configures:
#
#   dckpt_VERSION_ARCH.deb             the tool, policies, maps, documentation
#   libdckpt-dev_VERSION_ARCH.deb      headers, static libraries, packages for CMake and pkg-config
#   dckpt-VERSION-linux-ARCH.tar.gz    what the first holds, to be unpacked anywhere
#
# pyproject.toml makes the source archive and the wheel.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME dckpt)
set(CPACK_PACKAGE_VENDOR "dckpt developers")
set(CPACK_PACKAGE_CONTACT "dckpt developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_FILE_NAME "dckpt-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL tool development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_TOOL_FILE_NAME "${CPACK_PACKAGE_FILE_NAME}")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/PackageFormats.cmake" @ONLY CONTENT [[
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENTS_ALL tool)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
]])
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_BINARY_DIR}/PackageFormats.cmake")

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME dckpt)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOL_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOL_DESCRIPTION "The command line tool inspects, verifies, compares and converts
checkpoints of Megatron-Core, PyTorch DCP, Hugging Face and others, without Python.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libdckpt-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "Headers, static libraries, and packages for CMake and pkg-config
for programs that save and load such checkpoints.")
set(_hash_package zlib1g-dev)
if(DCKPT_WITH_ISAL)
  set(_hash_package "libisal-dev, zlib1g-dev")
endif()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "dckpt (= ${PROJECT_VERSION}), libboost-container-dev, libre2-dev, libssl-dev, libyaml-cpp-dev, libzstd-dev, ${_hash_package}")

# Debian wants the license of each package at this place, and binaries hold libraries that ask for
# their notices.
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/dckpt" RENAME copyright COMPONENT tool EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/libdckpt-dev" RENAME copyright COMPONENT development EXCLUDE_FROM_ALL)
if(DCKPT_STATIC_DEPENDENCIES)
  foreach(_library libzstd-dev libre2-dev libyaml-cpp-dev libssl-dev zlib1g-dev libisal-dev libboost${Boost_VERSION_MAJOR}.${Boost_VERSION_MINOR}-dev
                   nlohmann-json3-dev libxxhash-dev libc6-dev gcc-12-base)
    install(FILES /usr/share/doc/${_library}/copyright DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/dckpt/third_party"
            RENAME ${_library} COMPONENT tool OPTIONAL EXCLUDE_FROM_ALL)
  endforeach()
endif()
include(CPack)
