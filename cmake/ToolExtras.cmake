# What goes with the tool: a manual page per command and completion for shells. The tool writes them
# itself, whenever it was linked, from what its --help says.
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  message(STATUS "manual pages and completions are left out: they are written by the tool, which this machine cannot run")
  return()
endif()
set(_extras "${CMAKE_CURRENT_BINARY_DIR}/share")
add_custom_command(TARGET dckpt POST_BUILD COMMAND dckpt __extras "${_extras}" COMMENT "Writing manual pages and completions" VERBATIM)
if(DCKPT_INSTALL)
  install(DIRECTORY "${_extras}/man/" DESTINATION "${CMAKE_INSTALL_MANDIR}" COMPONENT tool)
  install(DIRECTORY "${_extras}/bash-completion" "${_extras}/zsh" "${_extras}/fish" DESTINATION "${CMAKE_INSTALL_DATADIR}" COMPONENT tool)
endif()
