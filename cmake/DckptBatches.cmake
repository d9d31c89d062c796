# dckpt_batches(TARGET [FOLDERS]): compiles the sources of TARGET in batches, files that include
# several of them, if DCKPT_BATCHES is on. A clean build then emits a template once per batch and
# not once per source, and takes half the time. Developers build without batches: each source must
# include what it uses, and an edit compiles one source.
#
# A batch holds neighbors of one folder, or whole small folders, that have the same options; with
# FOLDERS, none from two folders below that of TARGET. Its text names them from the root of the
# tree, so that it is the same in every checkout and a compiler cache finds it. Sources with
# definitions of their own, or with SKIP_UNITY_BUILD_INCLUSION, stay alone.
#
# With DCKPT_BATCHES_REVERSED a batch includes its sources the other way around. A source that lives on
# what its neighbor includes or defines does not compile in one of the two orders, so the presets of the sanitizers
# take this one.
#
# To be called when all sources and their properties are set.
if(DCKPT_BATCHES)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)  # a batch parses a header once anyway
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # which else spends a tenth of the time on its garbage
    target_compile_options(dckpt_flags INTERFACE --param=ggc-min-heapsize=500000)
    target_compile_options(dckpt_flags INTERFACE -Wno-subobject-linkage)  # takes the sources of a batch for headers
  endif()
endif()
set(DCKPT_BATCH_BYTES 200000)  # of source text: 25 s of compilation, 0.6 GB of memory

function(dckpt_batches target)
  if(NOT DCKPT_BATCHES)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(directory ${target} SOURCE_DIR)
  set(batches "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${directory}" NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR "${path}" is_generated)
    get_source_file_property(definitions "${source}" DIRECTORY "${directory}" COMPILE_DEFINITIONS)
    get_source_file_property(is_alone "${source}" DIRECTORY "${directory}" SKIP_UNITY_BUILD_INCLUSION)
    if(is_generated OR definitions OR is_alone OR NOT path MATCHES "[.]cpp$")
      continue()
    endif()
    file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}" "${path}")
    cmake_path(GET name PARENT_PATH folder)
    get_source_file_property(options "${source}" DIRECTORY "${directory}" COMPILE_OPTIONS)
    set(kind "${options}")  # the sources of a kind can share a batch
    if("FOLDERS" IN_LIST ARGN)
      file(RELATIVE_PATH below "${directory}" "${path}")
      string(REGEX REPLACE "/.*" "" below "${below}")
      string(APPEND kind " ${below}")
    endif()
    string(MAKE_C_IDENTIFIER "${kind}" kind)

    file(SIZE "${path}" bytes)
    math(EXPR filled "0${bytes_of_${kind}} + ${bytes}")
    set(limit ${DCKPT_BATCH_BYTES})
    if(NOT folder STREQUAL "${folder_of_${kind}}")  # a good place to begin another one
      math(EXPR limit "${limit} / 2 + ${bytes}")
    endif()
    if(NOT batch_of_${kind} OR filled GREATER limit)
      string(REGEX REPLACE "[.]cpp$" "_and_more.cpp" batch "${name}")
      list(APPEND batches "${batch}")
      set(batch_of_${kind} "${batch}")
      set("options_of_${batch}" "${options}")
      set(filled ${bytes})
    endif()
    set(batch "${batch_of_${kind}}")
    set(bytes_of_${kind} ${filled})
    set(folder_of_${kind} "${folder}")
    set(line "#include \"${name}\"\n")
    if(DCKPT_BATCHES_REVERSED)
      string(PREPEND "text_of_${batch}" "${line}")
    else()
      string(APPEND "text_of_${batch}" "${line}")
    endif()
    list(APPEND "sources_of_${batch}" "${source}")
  endforeach()

  foreach(batch IN LISTS batches)
    list(LENGTH "sources_of_${batch}" count)
    if(count EQUAL 1)
      continue()
    endif()
    set(file "${PROJECT_BINARY_DIR}/batches/${target}/${batch}")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${text_of_${batch}}" @ONLY)
    target_sources(${target} PRIVATE "${file}")
    set_source_files_properties("${file}" DIRECTORY "${directory}"
                                PROPERTIES INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}")
    if(options_of_${batch})
      set_source_files_properties("${file}" DIRECTORY "${directory}"
                                  PROPERTIES COMPILE_OPTIONS "${options_of_${batch}}")
    endif()
    set_source_files_properties(${sources_of_${batch}} DIRECTORY "${directory}"
                                PROPERTIES HEADER_FILE_ONLY ON)
  endforeach()
endfunction()
