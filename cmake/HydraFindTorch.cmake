# How LibTorch is found, by the build and by the installed package alike.

# hydra_find_torch(ROOT PROBLEM [FIRST paths...] [LAST paths...]): sets ROOT to the folder that holds
# LibTorch's include/ and lib/, or else PROBLEM to what is wrong. HYDRA_TORCH_DIR, in the environment
# or the cache, is the only place when it is named; else FIRST, CMAKE_PREFIX_PATH (the archive that
# pytorch.org ships, or Python's site-packages) and LAST are tried in this order.
function(hydra_find_torch root problem)
  cmake_parse_arguments(arg "" "" "FIRST;LAST" ${ARGN})
  set(HYDRA_TORCH_DIR "" CACHE PATH "The folder that holds LibTorch's include/ and lib/")
  if(DEFINED ENV{HYDRA_TORCH_DIR})
    set_property(CACHE HYDRA_TORCH_DIR PROPERTY VALUE "$ENV{HYDRA_TORCH_DIR}")
  endif()

  # Not cached: another LibTorch named later has to be seen, and one that is gone has to be missed.
  unset(HYDRA_TORCH_ROOT CACHE)
  set(header include/torch/csrc/api/include/torch/torch.h)
  if(HYDRA_TORCH_DIR)
    find_path(HYDRA_TORCH_ROOT ${header} PATHS ${HYDRA_TORCH_DIR} NO_CACHE NO_DEFAULT_PATH)
    set(why "HYDRA_TORCH_DIR=${HYDRA_TORCH_DIR} holds no ${header}")
  else()
    set(prefixes ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" prefixes "${prefixes}")
    set(suffixes torch libtorch)
    foreach(prefix ${prefixes})
      file(GLOB pythons RELATIVE ${prefix} ${prefix}/lib/python3.*/site-packages/torch)
      list(APPEND suffixes ${pythons})
    endforeach()
    find_path(HYDRA_TORCH_ROOT ${header} PATHS ${arg_FIRST} ${prefixes} ${arg_LAST}
      PATH_SUFFIXES ${suffixes} NO_CACHE NO_DEFAULT_PATH)
    set(why "LibTorch was not found in CMAKE_PREFIX_PATH")
    if(arg_FIRST OR arg_LAST)
      string(APPEND why ", nor in ${arg_FIRST}${arg_LAST}")
    endif()
  endif()
  if(HYDRA_TORCH_ROOT)
    string(REGEX REPLACE "/$" "" HYDRA_TORCH_ROOT ${HYDRA_TORCH_ROOT})
    set(${root} ${HYDRA_TORCH_ROOT} PARENT_SCOPE)
    set(${problem} "" PARENT_SCOPE)
  else()
    set(${root} "" PARENT_SCOPE)
    set(${problem} "${why}" PARENT_SCOPE)
  endif()
endfunction()

# hydra_torch_version(VERSION root): the version by the headers in root, or empty.
function(hydra_torch_version version root)
  set(${version} "" PARENT_SCOPE)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${root}/include/${header})
      file(READ ${root}/include/${header} text)
      if(text MATCHES "define TORCH_VERSION_MAJOR ([0-9]+)")
        set(found ${CMAKE_MATCH_1})
        foreach(part MINOR PATCH)
          string(REGEX MATCH "define TORCH_VERSION_${part} ([0-9]+)" _ "${text}")
          string(APPEND found .${CMAKE_MATCH_1})
        endforeach()
        set(${version} ${found} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# hydra_add_torch(root [GLOBAL]): hydra::torch_cpu, LibTorch's CPU half alone (libtorch_cpu and
# libc10), without CUDA's toolkit, and the run-time path to it.
function(hydra_add_torch root)
  add_library(hydra::torch_cpu INTERFACE IMPORTED ${ARGN})
  target_include_directories(hydra::torch_cpu SYSTEM INTERFACE
    ${root}/include ${root}/include/torch/csrc/api/include)
  target_link_libraries(hydra::torch_cpu INTERFACE
    ${root}/lib/libtorch_cpu.so ${root}/lib/libc10.so)
  target_link_options(hydra::torch_cpu INTERFACE
    # Old-style, so that the path also serves the libraries that libtorch_cpu itself loads.
    LINKER:--disable-new-dtags
    LINKER:-rpath,${root}/lib)
  # The wheel's libtorch_cpu wants libcudart and libcupti, which lie beside it in wheels of their own.
  file(GLOB companions ${root}/../nvidia/*/lib ${root}/../nvidia/*/*/lib)
  foreach(companion ${companions})
    target_link_options(hydra::torch_cpu INTERFACE LINKER:-rpath,${companion}
                                                   LINKER:-rpath-link,${companion})
  endforeach()
endfunction()
