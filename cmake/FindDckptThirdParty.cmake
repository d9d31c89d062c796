# Finds the libraries without a CMake package of their own on every system. This build uses it, and so
# does find_package(dckpt) for static libraries.
#
# Components: zstd, re2, yaml_cpp, isal. Each found one becomes the target DckptThirdParty::COMPONENT.
# CMAKE_PREFIX_PATH is searched first. With DCKPT_STATIC_DEPENDENCIES only archives (libzstd.a) will do.
set(_zstd zstd zstd.h)
set(_re2 re2 re2/re2.h)
set(_yaml_cpp yaml-cpp yaml-cpp/yaml.h)
set(_isal isal isa-l/crc.h)
foreach(_component IN LISTS DckptThirdParty_FIND_COMPONENTS)
  list(GET _${_component} 0 _name)
  list(GET _${_component} 1 _header)
  string(TOUPPER "DCKPT_${_component}" _variable)
  find_path(${_variable}_INCLUDE ${_header})
  if(DCKPT_STATIC_DEPENDENCIES)
    string(APPEND _variable _ARCHIVE)
    find_library(${_variable} NAMES lib${_name}.a)
  else()
    string(APPEND _variable _LIBRARY)
    find_library(${_variable} NAMES ${_name})
  endif()
  set(_library "${${_variable}}")
  string(TOUPPER "DCKPT_${_component}_INCLUDE" _include)
  mark_as_advanced(${_variable} ${_include})
  if(_library AND ${_include})
    set(DckptThirdParty_${_component}_FOUND TRUE)
    if(NOT TARGET DckptThirdParty::${_component})
      add_library(DckptThirdParty::${_component} UNKNOWN IMPORTED)
      set_target_properties(DckptThirdParty::${_component} PROPERTIES
        IMPORTED_LOCATION "${_library}" INTERFACE_INCLUDE_DIRECTORIES "${${_include}}")
    endif()
  else()
    set(DckptThirdParty_${_component}_FOUND FALSE)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
set(DckptThirdParty_COMPONENTS_SEARCHED TRUE)
set(_reason "")
if(DCKPT_STATIC_DEPENDENCIES)
  set(_reason "static programs need an archive (.a) of each: where ISA-L has none, build dckpt with DCKPT_ISAL=OFF")
endif()
find_package_handle_standard_args(DckptThirdParty REQUIRED_VARS DckptThirdParty_COMPONENTS_SEARCHED HANDLE_COMPONENTS
                                  REASON_FAILURE_MESSAGE "${_reason}")
