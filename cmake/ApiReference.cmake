# cmake -DSOURCE=… -DOUTPUT=… -DVERSION=… -DDOXYGEN=… -P ApiReference.cmake: the reference of the
# public headers, as users have these, in OUTPUT/html.
cmake_minimum_required(VERSION 3.22)

set(STAGE "${OUTPUT}/headers")
file(GLOB PUBLIC_HEADERS RELATIVE "${SOURCE}" "${SOURCE}/include/dckpt/*.h")
include("${CMAKE_CURRENT_LIST_DIR}/StageHeaders.cmake")
if(NOT DOXYGEN)
  message(STATUS "skipped: doxygen is missing")
  return()
endif()
configure_file("${SOURCE}/docs/Doxyfile.in" "${OUTPUT}/Doxyfile" @ONLY)
execute_process(COMMAND "${DOXYGEN}" "${OUTPUT}/Doxyfile" COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "${OUTPUT}/html/index.html")
