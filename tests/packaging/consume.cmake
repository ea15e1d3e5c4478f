# Configures SOURCE in BUILD with the arguments after --, builds it, runs its program `consumer`, and
# installs it, which may not install Hydra with it.

include(${OPTIONS})
set(arguments "")
set(seen FALSE)
foreach(i RANGE ${CMAKE_ARGC})
  if(seen AND DEFINED CMAKE_ARGV${i})
    list(APPEND arguments "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(seen TRUE)
  endif()
endforeach()

file(REMOVE_RECURSE ${BUILD})
file(MAKE_DIRECTORY ${BUILD})
execute_process(COMMAND ${CMAKE_COMMAND} -G ${generator} -S ${SOURCE} -B ${BUILD} ${options}
                        ${arguments} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD} COMMAND_ERROR_IS_FATAL ANY)
if(EXISTS ${BUILD}/consumer)
  execute_process(COMMAND ${BUILD}/consumer WORKING_DIRECTORY / COMMAND_ERROR_IS_FATAL ANY)
endif()
if(EXISTS ${BUILD}/libplugin.so)
  execute_process(COMMAND ${NM} --dynamic --defined-only --demangle ${BUILD}/libplugin.so
                  OUTPUT_VARIABLE exported COMMAND_ERROR_IS_FATAL ANY)
  if(NOT exported MATCHES "plugin_bytes" OR exported MATCHES "hydra::")
    message(FATAL_ERROR "the plugin exports:\n${exported}")
  endif()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${BUILD}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed ${BUILD}/prefix/*)
if(installed)
  message(FATAL_ERROR "the consumer installed ${installed}")
endif()
