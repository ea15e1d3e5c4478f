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

# What nearly every source needs of Torch: 40 seconds and 560 MB, once per build folder. The rest of
# <torch/torch.h> (data loaders, optimizers, every module) would make each source 4 seconds slower.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/hydra_torch_pch.cpp CONTENT "\n")
add_library(hydra_torch_pch OBJECT ${PROJECT_BINARY_DIR}/hydra_torch_pch.cpp)
target_link_libraries(hydra_torch_pch PRIVATE hydra_compiler hydra::torch_cpu)
target_precompile_headers(hydra_torch_pch PRIVATE
  <torch/types.h>
  <torch/utils.h>
  <torch/nn/module.h>
  <torch/nn/modules/linear.h>
  <torch/nn/modules/container/sequential.h>
  <torch/csrc/autograd/custom_function.h>)
target_compile_options(hydra_torch_pch PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
