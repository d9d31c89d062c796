# The headers of users, who find <dckpt/…> and nothing else: what these headers include is staged below
# dckpt/detail. DCKPT_USERS_INCLUDES is where users of this build find them.
file(GLOB DCKPT_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" include/dckpt/*.h)
if(NOT DckptTorch_FOUND)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/torch.h)
endif()
if(NOT DCKPT_WITH_CUDA)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/cuda.h)
endif()
if(NOT DckptNccl_FOUND)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/nccl.h)
endif()
if(NOT DckptMpi_FOUND)
  list(REMOVE_ITEM DCKPT_PUBLIC_HEADERS include/dckpt/mpi.h)
endif()
set(dckpt_staged_headers "${PROJECT_BINARY_DIR}/installed_headers")

function(dckpt_stage_headers)
  set(SOURCE "${PROJECT_SOURCE_DIR}")
  set(STAGE "${dckpt_staged_headers}")
  set(PUBLIC_HEADERS ${DCKPT_PUBLIC_HEADERS})
  include("${PROJECT_SOURCE_DIR}/cmake/StageHeaders.cmake")
  list(TRANSFORM reached PREPEND "${PROJECT_SOURCE_DIR}/")
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${reached})
endfunction()
if(PROJECT_IS_TOP_LEVEL)  # tests look behind the public headers
  set(DCKPT_USERS_INCLUDES "${PROJECT_SOURCE_DIR};${PROJECT_SOURCE_DIR}/include")
else()
  dckpt_stage_headers()
  set(DCKPT_USERS_INCLUDES "${dckpt_staged_headers}")
endif()

# Their reference: cmake --build … --target docs
find_program(DCKPT_DOXYGEN doxygen)
set(DCKPT_API_REFERENCE ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
    -DDOXYGEN=$<$<BOOL:${DCKPT_DOXYGEN}>:${DCKPT_DOXYGEN}>)
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(docs COMMAND ${DCKPT_API_REFERENCE} -DOUTPUT=${PROJECT_BINARY_DIR}/docs
                                 -P ${PROJECT_SOURCE_DIR}/cmake/ApiReference.cmake VERBATIM)
endif()
