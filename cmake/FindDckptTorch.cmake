# Finds libtorch: a wheel of PyTorch or the libtorch archive. Links torch_cpu and c10 only, so that neither a CUDA toolkit nor the
# CUDA language is asked for, which find_package(Torch) does for a CUDA wheel.
#
# Looked for, in this order: DCKPT_TORCH_ROOT (variable or environment; the folder that holds include/ and lib/, in a wheel
# site-packages/torch), CMAKE_PREFIX_PATH (the folder itself, or share/cmake in it, which torch.utils.cmake_prefix_path names),
# the active virtual environment.
#
# Defines the target DckptTorch::torch and DckptTorch_VERSION.
set(DCKPT_TORCH_ROOT "" CACHE PATH "Folder of libtorch that holds include/ and lib/")
set(_hints ${DCKPT_TORCH_ROOT} $ENV{DCKPT_TORCH_ROOT})
if(DEFINED ENV{VIRTUAL_ENV})
  file(GLOB _site_packages "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages/torch")
  set(_fallback ${_site_packages})
endif()
find_path(DckptTorch_INCLUDE_DIR ATen/core/Tensor.h HINTS ${_hints} PATHS ${_fallback} PATH_SUFFIXES include ../../include)
if(DckptTorch_INCLUDE_DIR)
  get_filename_component(_root "${DckptTorch_INCLUDE_DIR}" DIRECTORY)
  find_library(DckptTorch_CPU_LIBRARY torch_cpu PATHS "${_root}/lib" NO_DEFAULT_PATH)
  find_library(DckptTorch_C10_LIBRARY c10 PATHS "${_root}/lib" NO_DEFAULT_PATH)
  foreach(_file "${DckptTorch_INCLUDE_DIR}/torch/headeronly/version.h" "${DckptTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
    if(EXISTS "${_file}" AND NOT DckptTorch_VERSION)
      file(STRINGS "${_file}" _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
      list(JOIN _numbers "." DckptTorch_VERSION)
    endif()
  endforeach()
  if(EXISTS "${_root}/share/cmake/Torch/TorchConfig.cmake")
    file(STRINGS "${_root}/share/cmake/Torch/TorchConfig.cmake" _old_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
  endif()
endif()

if(_old_abi)
  set(DckptTorch_FOUND FALSE)
  set(DckptTorch_NOT_FOUND_MESSAGE "${_root} was built with _GLIBCXX_USE_CXX11_ABI=0; dckpt needs a libtorch with the C++11 ABI")
  if(NOT DckptTorch_FIND_QUIETLY)
    message(STATUS "${DckptTorch_NOT_FOUND_MESSAGE}")
  endif()
  return()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DckptTorch REQUIRED_VARS DckptTorch_CPU_LIBRARY DckptTorch_C10_LIBRARY DckptTorch_INCLUDE_DIR
                                  VERSION_VAR DckptTorch_VERSION)
mark_as_advanced(DckptTorch_INCLUDE_DIR DckptTorch_CPU_LIBRARY DckptTorch_C10_LIBRARY)

if(DckptTorch_FOUND AND NOT TARGET DckptTorch::torch)
  add_library(DckptTorch::c10 SHARED IMPORTED)
  set_target_properties(DckptTorch::c10 PROPERTIES IMPORTED_LOCATION "${DckptTorch_C10_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${DckptTorch_INCLUDE_DIR}")
  add_library(DckptTorch::torch SHARED IMPORTED)
  set_target_properties(DckptTorch::torch PROPERTIES IMPORTED_LOCATION "${DckptTorch_CPU_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${DckptTorch_INCLUDE_DIR};${DckptTorch_INCLUDE_DIR}/torch/csrc/api/include"
                        INTERFACE_LINK_LIBRARIES DckptTorch::c10)
  # The wheel keeps the CUDA libraries that torch_cpu needs in packages of their own; linkers that follow dependencies look there.
  file(GLOB _cuda_libraries "${_root}/../nvidia/*/lib")
  foreach(_folder IN LISTS _cuda_libraries)
    set_property(TARGET DckptTorch::torch APPEND PROPERTY INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_folder}")
  endforeach()
endif()
