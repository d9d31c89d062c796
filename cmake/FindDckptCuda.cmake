# Finds the CUDA runtime: headers and library, not the compiler; no GPU is needed.
#
# Looked for, in this order: DCKPT_CUDA_ROOT (variable or environment; the folder that holds include/
# and lib64/ or lib/), CMAKE_PREFIX_PATH, CUDA_HOME and CUDA_PATH of the environment, /usr/local/cuda.
#
# Defines the targets DckptCuda::cudart and DckptCuda::headers (the same without the library).
set(DCKPT_CUDA_ROOT "" CACHE PATH "Folder of the CUDA toolkit that holds include/ and lib64/")
set(_cuda_hints ${DCKPT_CUDA_ROOT} $ENV{DCKPT_CUDA_ROOT})
set(_cuda_fallback $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
find_path(DckptCuda_INCLUDE_DIR cuda_runtime_api.h HINTS ${_cuda_hints} PATHS ${_cuda_fallback} PATH_SUFFIXES include)
find_library(DckptCuda_CUDART_LIBRARY cudart HINTS ${_cuda_hints} PATHS ${_cuda_fallback} PATH_SUFFIXES lib64 lib)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DckptCuda REQUIRED_VARS DckptCuda_CUDART_LIBRARY DckptCuda_INCLUDE_DIR)
mark_as_advanced(DckptCuda_INCLUDE_DIR DckptCuda_CUDART_LIBRARY)

if(DckptCuda_FOUND AND NOT TARGET DckptCuda::cudart)
  add_library(DckptCuda::headers INTERFACE IMPORTED)
  set_target_properties(DckptCuda::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${DckptCuda_INCLUDE_DIR}")
  add_library(DckptCuda::cudart INTERFACE IMPORTED)
  set_target_properties(DckptCuda::cudart PROPERTIES INTERFACE_LINK_LIBRARIES "DckptCuda::headers;${DckptCuda_CUDART_LIBRARY}")
endif()
