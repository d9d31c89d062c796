# Finds NCCL, and the CUDA runtime (FindDckptCuda.cmake): headers and libraries; no GPU is needed.
#
# Looked for, in this order: DCKPT_NCCL_ROOT (variable or environment; the folder that holds include/ and lib/ or lib64/), CMAKE_PREFIX_PATH,
# CUDA_HOME and CUDA_PATH of the environment, /usr/local/cuda.
#
# Defines the targets DckptNccl::nccl and DckptNccl::headers (the same without the libraries), and DckptNccl_VERSION.
set(DCKPT_NCCL_ROOT "" CACHE PATH "Folder of NCCL that holds include/ and lib/")
find_package(DckptCuda QUIET)
set(_cuda_fallback $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
set(_nccl_hints ${DCKPT_NCCL_ROOT} $ENV{DCKPT_NCCL_ROOT})
find_path(DckptNccl_INCLUDE_DIR nccl.h HINTS ${_nccl_hints} PATHS ${_cuda_fallback} PATH_SUFFIXES include)
find_library(DckptNccl_LIBRARY nccl HINTS ${_nccl_hints} PATHS ${_cuda_fallback} PATH_SUFFIXES lib64 lib)
if(DckptNccl_INCLUDE_DIR)
  file(STRINGS "${DckptNccl_INCLUDE_DIR}/nccl.h" _lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  list(JOIN _numbers "." DckptNccl_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DckptNccl REQUIRED_VARS DckptNccl_LIBRARY DckptNccl_INCLUDE_DIR DckptCuda_FOUND
                                  VERSION_VAR DckptNccl_VERSION)
mark_as_advanced(DckptNccl_INCLUDE_DIR DckptNccl_LIBRARY)

if(DckptNccl_FOUND AND NOT TARGET DckptNccl::nccl)
  add_library(DckptNccl::headers INTERFACE IMPORTED)
  set_target_properties(DckptNccl::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${DckptNccl_INCLUDE_DIR}" INTERFACE_LINK_LIBRARIES DckptCuda::headers)
  add_library(DckptNccl::nccl INTERFACE IMPORTED)
  set_target_properties(DckptNccl::nccl PROPERTIES INTERFACE_LINK_LIBRARIES "DckptNccl::headers;${DckptNccl_LIBRARY};DckptCuda::cudart")
endif()
