# Installs BUILD into FIRST and moves it to MOVED, where nothing may remember the folders it came from.

file(REMOVE_RECURSE ${FIRST} ${MOVED})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${FIRST}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${FIRST} ${MOVED})

file(GLOB_RECURSE files ${MOVED}/*.cmake ${MOVED}/*.h)
if(NOT files)
  message(FATAL_ERROR "nothing was installed")
endif()
foreach(file ${files})
  file(READ ${file} text)
  # The one path that is meant: the build's own LibTorch, a last hint.
  if(TORCH)
    string(REPLACE "LAST \"${TORCH}\"" "" text "${text}")
  endif()
  foreach(folder ${FIRST} ${BUILD} ${SOURCE})
    string(FIND "${text}" "${folder}" at)
    if(NOT at EQUAL -1)
      message(SEND_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()

# Every public header, and no other.
file(GLOB_RECURSE installed RELATIVE ${MOVED}/include ${MOVED}/include/*)
file(GLOB_RECURSE public RELATIVE ${SOURCE}/include ${SOURCE}/include/*.h)
if(NOT TORCH)
  set(core core memory io device residency schedule report)
  list(JOIN core "|" core)
  list(FILTER public INCLUDE REGEX "^hydra/(${core})/")
endif()
list(SORT installed)
list(SORT public)
if(NOT installed STREQUAL public)
  message(FATAL_ERROR "installed headers:\n${installed}\npublic headers:\n${public}")
endif()
