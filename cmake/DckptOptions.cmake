include(CMakeDependentOption)
include(GNUInstallDirs)
# Build options and the flags that all targets share.
option(DCKPT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(DCKPT_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(DCKPT_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(DCKPT_BUILD_FUZZERS "Build the libFuzzer targets (needs clang)" OFF)
set(_batches ON)
if(PROJECT_IS_TOP_LEVEL)  # developers edit sources; a parent project builds them once
  set(_batches OFF)
endif()
option(DCKPT_BATCHES "Compile neighboring sources together: for clean builds, which take half as long" ${_batches})
option(DCKPT_BATCHES_REVERSED "Batches in the other order, which finds sources that need their neighbors" OFF)
option(DCKPT_INSTALL "Install the library, the tool and the documentation" ${PROJECT_IS_TOP_LEVEL})
option(DCKPT_STATIC_DEPENDENCIES "Link other libraries statically, the tool's C++ runtime included" OFF)
option(DCKPT_WERROR "Treat warnings as errors" OFF)
set(DCKPT_SANITIZE "" CACHE STRING "Sanitizers for all targets, as -fsanitize takes them (address,undefined or thread)")
# A process starts slowly under a sanitizer, and there are three thousand cases.
cmake_dependent_option(DCKPT_TEST_PROGRAMS "ctest runs a test program as one test, not case by case" OFF "NOT DCKPT_SANITIZE" ON)
set(DCKPT_TORCH "AUTO" CACHE STRING "Build dckpt::torch: AUTO (when libtorch is found), ON or OFF")
set_property(CACHE DCKPT_TORCH PROPERTY STRINGS AUTO ON OFF)
set(DCKPT_CUDA "AUTO" CACHE STRING "Build dckpt::cuda: AUTO (when the CUDA runtime is found), ON or OFF")
set_property(CACHE DCKPT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(DCKPT_NCCL "AUTO" CACHE STRING "Build dckpt::nccl: AUTO (when NCCL and the CUDA runtime are found), ON or OFF")
set_property(CACHE DCKPT_NCCL PROPERTY STRINGS AUTO ON OFF)
set(DCKPT_MPI "AUTO" CACHE STRING "Build dckpt::mpi and the tool for ranks, dckpt-mpi: AUTO (when MPI is found), ON or OFF")
set_property(CACHE DCKPT_MPI PROPERTY STRINGS AUTO ON OFF)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME tool)  # the other one is `development`, see DckptInstall.cmake
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Objects are the same in static and shared libraries; what is visible outside of these says
# mapping/base/api.h.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(PROJECT_IS_TOP_LEVEL)  # a parent project decides on these
  option(BUILD_SHARED_LIBS "Build shared libraries" OFF)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  find_program(DCKPT_CCACHE ccache)
  if(DCKPT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${DCKPT_CCACHE}")
  endif()
  find_program(DCKPT_MOLD mold)
  if(DCKPT_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

# Flags of every target of this project, not of its users.
add_library(dckpt_flags INTERFACE)
target_compile_options(dckpt_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wno-missing-field-initializers
                       $<$<BOOL:${DCKPT_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # ccache needs the first to see what a precompiled header holds
  target_compile_options(dckpt_flags INTERFACE -fpch-preprocess -Winvalid-pch)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # at -O2 GCC suspects the untaken branches of std::string, std::variant and small_vector
  target_compile_options(dckpt_flags INTERFACE -Wno-restrict -Wno-stringop-overread -Wno-stringop-overflow -Wno-maybe-uninitialized -Wno-array-bounds)
endif()
if(DCKPT_SANITIZE)
  target_compile_options(dckpt_flags INTERFACE -fsanitize=${DCKPT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(dckpt_flags INTERFACE -fsanitize=${DCKPT_SANITIZE})
endif()
if(DCKPT_BUILD_FUZZERS)  # coverage in every object; only the fuzz programs get libFuzzer's main
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DCKPT_BUILD_FUZZERS needs clang (CMAKE_CXX_COMPILER=clang++), this is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  target_compile_options(dckpt_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(dckpt_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

include(DckptBatches)

# dckpt_layer(NAME [DEPENDS layers…] [PRECOMPILED_AS layer] [BATCHES FOLDERS]): one static library per
# layer; the link graph is the include graph. PRECOMPILED_AS: it takes the precompiled headers of that
# layer, which target_precompile_headers lists. BATCHES FOLDERS: see dckpt_batches.
function(dckpt_layer name)
  cmake_parse_arguments(arg "" "PRECOMPILED_AS;BATCHES" "DEPENDS" ${ARGN})
  add_library(dckpt_${name} STATIC)
  target_include_directories(dckpt_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  if(PROJECT_IS_TOP_LEVEL)  # for the tests; users of a subproject find <dckpt/…> only
    target_include_directories(dckpt_${name} INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  endif()
  target_link_libraries(dckpt_${name} PUBLIC ${arg_DEPENDS} PRIVATE $<BUILD_INTERFACE:dckpt_flags>)
  target_compile_features(dckpt_${name} PUBLIC cxx_std_20)
  if(arg_PRECOMPILED_AS)
    target_precompile_headers(dckpt_${name} REUSE_FROM dckpt_${arg_PRECOMPILED_AS})
  endif()
  cmake_language(EVAL CODE "cmake_language(DEFER CALL dckpt_batches dckpt_${name} ${arg_BATCHES})")  # when all sources are known
endfunction()

# Release builds are made with -O2. dckpt_hot(FILES…): loops over elements, bytes or the items of all
# ranks, which gain from -O3. dckpt_cold(FILES…): what runs once per command or checkpoint; -O1 compiles it in three
# quarters of the time.
function(dckpt_hot)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
function(dckpt_cold)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1)
  endif()
endfunction()
