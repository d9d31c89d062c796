# The headers of users, who find <dckpt/…> and nothing else: what these headers include is staged below
# dckpt/detail. DCKPT_USERS_INCLUDES is where users of this build find them.
file(GLOB DCKPT_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" include/dckpt/*.h)
function(dckpt_headers_need variable)  # NAMES…: they are left out where the variable is false
  if(NOT ${variable})
    list(TRANSFORM ARGN REPLACE "(.+)" "include/dckpt/\\1.h")
    list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS ${ARGN})
    set(DCKPT_PUBLIC_HEADERS ${DCKPT_PUBLIC_HEADERS} PARENT_SCOPE)
  endif()
endfunction()
dckpt_headers_need(DckptTorch_FOUND torch)
dckpt_headers_need(DCKPT_WITH_CUDA cuda)
dckpt_headers_need(DckptNccl_FOUND nccl)
dckpt_headers_need(DckptMpi_FOUND mpi)
dckpt_headers_need(DCKPT_FORMATS_LIBRARY formats)
dckpt_headers_need(DCKPT_MAPS maps)
dckpt_headers_need(DCKPT_OPERATIONS cli convert inspect json operations testing upkeep)
function(dckpt_stage_headers)
  set(SOURCE "${PROJECT_SOURCE_DIR}")
  set(STAGE "${DCKPT_USERS_INCLUDES}")
  set(PUBLIC_HEADERS ${DCKPT_PUBLIC_HEADERS})
  include("${PROJECT_SOURCE_DIR}/cmake/StageHeaders.cmake")
  list(TRANSFORM reached PREPEND "${PROJECT_SOURCE_DIR}/")
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${reached})
endfunction()
if(PROJECT_IS_TOP_LEVEL)  # tests look behind the public headers
  set(DCKPT_USERS_INCLUDES "${PROJECT_SOURCE_DIR};${PROJECT_SOURCE_DIR}/include")
else()
  set(DCKPT_USERS_INCLUDES "${PROJECT_BINARY_DIR}/users_headers")
  dckpt_stage_headers()
endif()

# Their reference: cmake --build … --target docs
find_program(DCKPT_DOXYGEN doxygen)
set(DCKPT_API_REFERENCE ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
    -DDOXYGEN=$<$<BOOL:${DCKPT_DOXYGEN}>:${DCKPT_DOXYGEN}>)
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(docs COMMAND ${DCKPT_API_REFERENCE} -DOUTPUT=${PROJECT_BINARY_DIR}/docs
                                 -P ${PROJECT_SOURCE_DIR}/cmake/ApiReference.cmake VERBATIM)
endif()
