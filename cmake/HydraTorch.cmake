# hydra::torch_cpu for the build, and the one precompiled header that holds Torch.

include(HydraFindTorch)

# .deps/ is where scripts/setup.sh puts LibTorch.
hydra_find_torch(HYDRA_TORCH_ROOT problem FIRST ${PROJECT_SOURCE_DIR}/.deps/torch)
if(problem)
  message(FATAL_ERROR "${problem}: run scripts/setup.sh, or name LibTorch's folder in "
                      "HYDRA_TORCH_DIR or CMAKE_PREFIX_PATH, or build the core alone with "
                      "-DHYDRA_WITH_TORCH=OFF.")
endif()
message(STATUS "LibTorch: ${HYDRA_TORCH_ROOT}")
hydra_add_torch(${HYDRA_TORCH_ROOT} GLOBAL)

# <torch/torch.h> costs a minute and 700 MB, once per build folder.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/hydra_torch_pch.cpp CONTENT "\n")
add_library(hydra_torch_pch OBJECT ${PROJECT_BINARY_DIR}/hydra_torch_pch.cpp)
target_link_libraries(hydra_torch_pch PRIVATE hydra_compiler hydra::torch_cpu)
target_precompile_headers(hydra_torch_pch PRIVATE <torch/torch.h>)
target_compile_options(hydra_torch_pch PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
