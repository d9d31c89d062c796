# cmake -DROOT=<source> -DCXX=<compiler> "-DINCLUDES=<-I…|-I…>" -P preprocessed_lines.cmake: users' headers stay small. Lines
# that the preprocessor leaves, without blanks and markers, follow compile time closely and do not depend on the machine.
cmake_minimum_required(VERSION 3.22)

# With GCC 12's library; others differ by a tenth or two, hence the margin.
set(limits fwd.h 2000 tensor.h 66000 state.h 84000 error.h 55000 dist_checkpointing.h 101000)
set(problems "")
set(measured "")
string(REPLACE "|" ";" INCLUDES "${INCLUDES}")
while(limits)
  list(POP_FRONT limits header limit)
  execute_process(COMMAND "${CXX}" -std=c++20 -w -E -P "-I${ROOT}" "-I${ROOT}/include" ${INCLUDES} -x c++ "${ROOT}/include/dckpt/${header}"
                  OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${CXX} cannot preprocess ${header}:\n${errors}")
  endif()
  string(REGEX MATCHALL "\n" newlines "${text}")
  list(LENGTH newlines lines)
  string(APPEND measured "  dckpt/${header}: ${lines} lines of ${limit}\n")
  if(lines GREATER limit)
    string(APPEND problems "  dckpt/${header}: ${lines} lines after the preprocessor, at most ${limit} are allowed\n")
  endif()
endwhile()
message("${measured}")
if(problems)
  message(FATAL_ERROR "Users' headers have grown. Include less, or declare what they only name (dckpt/fwd.h):\n${problems}")
endif()
