# How all of our own code is compiled: target hydra_compiler, linked privately.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_library(hydra_compiler INTERFACE)
# Contracted multiply-adds would make an element's bits depend on how a loop was vectorised.
target_compile_options(hydra_compiler INTERFACE -Wall -Wextra -Wpedantic -ffp-contract=off)
# A shared library that uses Hydra does not export Hydra with it.
target_compile_options(hydra_compiler INTERFACE -fvisibility=hidden -fvisibility-inlines-hidden)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of g++ 12 on std::string's operator+ (GCC bug 105651).
  target_compile_options(hydra_compiler INTERFACE -Wno-restrict)
endif()
if(HYDRA_WERROR)
  target_compile_options(hydra_compiler INTERFACE -Werror)
endif()
if(HYDRA_DEBUG_CHECKS)
  target_compile_definitions(hydra_compiler INTERFACE HYDRA_DEBUG_CHECKS=1)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(hydra_compiler INTERFACE -Wthread-safety)
endif()
if(HYDRA_SANITIZE)
  string(REPLACE ";" "," sanitizers "${HYDRA_SANITIZE}")
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${sanitizers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++ 12 warns falsely about std::optional and fences under sanitizers.
    add_compile_options(-Wno-maybe-uninitialized -Wno-tsan)
  endif()
endif()

# ccache with a precompiled header needs to be told which differences do not matter.
find_program(HYDRA_CCACHE ccache)
if(HYDRA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_MAXSIZE=8G ${HYDRA_CCACHE})
endif()
