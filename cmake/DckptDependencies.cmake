# Third-party packages. Each is named in one or two source files only.
if(DCKPT_STATIC_DEPENDENCIES)
  set(OPENSSL_USE_STATIC_LIBS ON)
  find_library(ZLIB_LIBRARY libz.a REQUIRED)
endif()
# dckpt_feature(NAME PACKAGE ARGS…): DCKPT_WITH_NAME says whether the package is found and used, as
# DCKPT_NAME (AUTO, ON, OFF) wants.
macro(dckpt_feature name package)
  set(DCKPT_WITH_${name} OFF)
  if(DCKPT_${name} STREQUAL "ON")
    find_package(${package} REQUIRED ${ARGN})
    set(DCKPT_WITH_${name} ON)
  elseif(NOT DCKPT_${name} STREQUAL "OFF")
    find_package(${package} QUIET ${ARGN})
    set(DCKPT_WITH_${name} ${${package}_FOUND})
    if(NOT DCKPT_WITH_${name})
      message(STATUS "${name} was not found: no ${_use_${name}}")
    endif()
  endif()
endmacro()
find_package(Threads REQUIRED)
find_package(Boost REQUIRED)                       # container: headers only
find_package(ZLIB REQUIRED)                        # CRC-32 where ISA-L (isal) is missing
dckpt_feature(OPENSSL OpenSSL COMPONENTS Crypto)   # SHA-256, mapping/base/sha256.cpp
find_path(DCKPT_XXHASH_INCLUDE xxhash.h REQUIRED)  # XXH3, header-only use, in mapping/base/fingerprint.cpp
find_package(nlohmann_json REQUIRED)
find_package(DckptThirdParty REQUIRED COMPONENTS yaml_cpp)  # configs/yaml/yaml.cpp
dckpt_feature(ISAL DckptThirdParty COMPONENTS isal)  # mapping/base/hash.cpp
dckpt_feature(RE2 DckptThirdParty COMPONENTS re2)    # configs/policy/rename.cpp
dckpt_feature(ZSTD DckptThirdParty COMPONENTS zstd)  # strategies/formats/zstd/zstd.cpp
if(DCKPT_TORCH STREQUAL "ON")                      # mapping/torch and strategies/comm/c10d only
  find_package(DckptTorch REQUIRED)
elseif(NOT DCKPT_TORCH STREQUAL "OFF")
  find_package(DckptTorch QUIET)
endif()
if(DckptTorch_FOUND)
  message(STATUS "libtorch ${DckptTorch_VERSION}: ${DckptTorch_CPU_LIBRARY}")
else()
  message(STATUS "dckpt::torch is left out: no libtorch (DCKPT_TORCH_ROOT says where it is)")
endif()
if(DCKPT_CUDA STREQUAL "ON")                       # strategies/device/cuda only
  find_package(DckptCuda REQUIRED)
elseif(NOT DCKPT_CUDA STREQUAL "OFF")
  find_package(DckptCuda QUIET)
endif()
if(DCKPT_CUDA STREQUAL "OFF" OR NOT DckptCuda_FOUND)
  message(STATUS "dckpt::cuda is left out: no CUDA runtime (DCKPT_CUDA_ROOT says where it is)")
  set(DCKPT_WITH_CUDA OFF)
else()
  message(STATUS "CUDA runtime: ${DckptCuda_CUDART_LIBRARY}")
  set(DCKPT_WITH_CUDA ON)
endif()
if(DCKPT_NCCL STREQUAL "ON")                       # strategies/comm/nccl only; 2.14 has communicators that do not block
  find_package(DckptNccl 2.14 REQUIRED)
elseif(NOT DCKPT_NCCL STREQUAL "OFF")
  find_package(DckptNccl 2.14 QUIET)
endif()
if(DckptNccl_FOUND)
  message(STATUS "NCCL ${DckptNccl_VERSION}: ${DckptNccl_LIBRARY}")
else()
  message(STATUS "dckpt::nccl is left out: no NCCL with the CUDA runtime (DCKPT_NCCL_ROOT and DCKPT_CUDA_ROOT say where they are)")
endif()
if(DCKPT_MPI STREQUAL "ON")                        # strategies/comm/mpi and tools/dckpt/mpi_main.cpp only
  find_package(DckptMpi REQUIRED)
elseif(NOT DCKPT_MPI STREQUAL "OFF" AND NOT DCKPT_SANITIZE AND NOT DCKPT_BUILD_FUZZERS)  # sanitizers report the leaks of MPI libraries
  find_package(DckptMpi QUIET)
endif()
if(DckptMpi_FOUND)
  message(STATUS "MPI ${DckptMpi_VERSION}: ${MPI_CXX_COMPILER}")
else()
  message(STATUS "dckpt::mpi is left out: no MPI (MPI_CXX_COMPILER names its compiler wrapper)")
endif()
