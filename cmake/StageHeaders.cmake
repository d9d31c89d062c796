# Makes STAGE the folder of headers as users have it, from the tree in SOURCE: include/dckpt as it
# is called, and HEADERS (paths in the tree) below dckpt/detail. In the tree, includes of these are
# spelt from its root; there, from the folder that users search.
cmake_minimum_required(VERSION 3.22)

function(stage from to)
  file(READ "${SOURCE}/${from}" content)
  string(REGEX REPLACE "#include \"(${LAYERS})/" "#include \"dckpt/detail/\\1/" content "${content}")
  file(WRITE "${STAGE}/${to}" "${content}")
endfunction()

list(JOIN LAYERS "|" LAYERS)
file(REMOVE_RECURSE "${STAGE}")
foreach(header IN LISTS PUBLIC_HEADERS)
  string(REGEX REPLACE "^include/" "" to "${header}")
  stage("${header}" "${to}")
endforeach()
foreach(header IN LISTS HEADERS)
  stage("${header}" "dckpt/detail/${header}")
endforeach()
