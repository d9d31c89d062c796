# Third-party packages. Each is named in one or two source files only.
if(DCKPT_STATIC_DEPENDENCIES)
  set(OPENSSL_USE_STATIC_LIBS ON)
  find_library(ZLIB_LIBRARY libz.a REQUIRED)
endif()
find_package(Threads REQUIRED)
find_package(Boost REQUIRED)                       # container: headers only
find_package(ZLIB REQUIRED)                        # CRC-32 where ISA-L (isal) is missing
find_package(OpenSSL REQUIRED COMPONENTS Crypto)   # SHA-256
find_path(DCKPT_XXHASH_INCLUDE xxhash.h REQUIRED)  # XXH3, header-only use, in mapping/base/fingerprint.cpp
find_package(fmt REQUIRED)                         # header-only, mapping/base/format.cpp
find_package(nlohmann_json REQUIRED)
find_package(DckptThirdParty REQUIRED              # zstd: strategies/formats/zstd/zstd.cpp; re2: configs/rename.cpp
  COMPONENTS zstd re2 yaml_cpp OPTIONAL_COMPONENTS isal)  # yaml_cpp: configs/yaml.cpp; isal: mapping/base/hash.cpp
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
