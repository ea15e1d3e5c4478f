# hydra::torch_cpu: LibTorch's CPU half alone (libtorch_cpu and libc10), without CUDA's toolkit.
#
# Looks for LibTorch in HYDRA_TORCH_DIR, then in .deps/ (where scripts/setup.sh puts it), then in
# CMAKE_PREFIX_PATH: the archive that pytorch.org ships, or Python's site-packages.

set(HYDRA_TORCH_DIR "" CACHE PATH "The folder that holds LibTorch's include/ and lib/")
if(DEFINED ENV{HYDRA_TORCH_DIR})
  set_property(CACHE HYDRA_TORCH_DIR PROPERTY VALUE "$ENV{HYDRA_TORCH_DIR}")
endif()

# Not cached: another LibTorch named later has to be seen, and one that is gone has to be missed.
unset(HYDRA_TORCH_ROOT CACHE)
set(torch_header include/torch/csrc/api/include/torch/torch.h)
if(HYDRA_TORCH_DIR)
  find_path(HYDRA_TORCH_ROOT ${torch_header} PATHS ${HYDRA_TORCH_DIR} NO_CACHE NO_DEFAULT_PATH)
  if(NOT HYDRA_TORCH_ROOT)
    message(FATAL_ERROR "HYDRA_TORCH_DIR=${HYDRA_TORCH_DIR} holds no ${torch_header}: name a "
                        "LibTorch there, or unset it and run scripts/setup.sh.")
  endif()
else()
  set(prefixes ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" prefixes "${prefixes}")
  set(suffixes torch libtorch)
  foreach(prefix ${prefixes})
    file(GLOB pythons RELATIVE ${prefix} ${prefix}/lib/python3.*/site-packages/torch)
    list(APPEND suffixes ${pythons})
  endforeach()
  find_path(HYDRA_TORCH_ROOT ${torch_header}
    PATHS ${PROJECT_SOURCE_DIR}/.deps/torch ${prefixes} PATH_SUFFIXES ${suffixes}
    NO_CACHE NO_DEFAULT_PATH)
  if(NOT HYDRA_TORCH_ROOT)
    message(FATAL_ERROR
      "LibTorch was not found: run scripts/setup.sh, or name its folder in HYDRA_TORCH_DIR or "
      "CMAKE_PREFIX_PATH, or build the core alone with -DHYDRA_WITH_TORCH=OFF.")
  endif()
endif()
string(REGEX REPLACE "/$" "" HYDRA_TORCH_ROOT ${HYDRA_TORCH_ROOT})
message(STATUS "LibTorch: ${HYDRA_TORCH_ROOT}")

# The wheel's libtorch_cpu wants libcudart and libcupti, which lie beside it in wheels of their own.
file(GLOB HYDRA_TORCH_COMPANIONS
  ${HYDRA_TORCH_ROOT}/../nvidia/*/lib ${HYDRA_TORCH_ROOT}/../nvidia/*/*/lib)

add_library(hydra_torch_cpu INTERFACE)
add_library(hydra::torch_cpu ALIAS hydra_torch_cpu)
target_include_directories(hydra_torch_cpu SYSTEM INTERFACE
  $<BUILD_INTERFACE:${HYDRA_TORCH_ROOT}/include>
  $<BUILD_INTERFACE:${HYDRA_TORCH_ROOT}/include/torch/csrc/api/include>)
target_link_libraries(hydra_torch_cpu INTERFACE
  $<BUILD_INTERFACE:${HYDRA_TORCH_ROOT}/lib/libtorch_cpu.so>
  $<BUILD_INTERFACE:${HYDRA_TORCH_ROOT}/lib/libc10.so>)
target_link_options(hydra_torch_cpu INTERFACE
  # Old-style, so that the path also serves the libraries that libtorch_cpu itself loads.
  LINKER:--disable-new-dtags
  LINKER:-rpath,${HYDRA_TORCH_ROOT}/lib)
foreach(companion ${HYDRA_TORCH_COMPANIONS})
  target_link_options(hydra_torch_cpu INTERFACE LINKER:-rpath,${companion}
                                                LINKER:-rpath-link,${companion})
endforeach()

# The one precompiled header: <torch/torch.h> costs a minute and 700 MB, once per build folder.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/hydra_torch_pch.cpp CONTENT "\n")
add_library(hydra_torch_pch OBJECT ${PROJECT_BINARY_DIR}/hydra_torch_pch.cpp)
target_link_libraries(hydra_torch_pch PRIVATE hydra_compiler hydra::torch_cpu)
target_precompile_headers(hydra_torch_pch PRIVATE <torch/torch.h>)
target_compile_options(hydra_torch_pch PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
