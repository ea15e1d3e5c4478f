# The libraries, and the functions by which folders add to them.

set(HYDRA_CORE_FOLDERS core memory io device residency schedule report)
set(HYDRA_TORCH_FOLDERS model optim data checkpoint models engine runtime select)

# hydra_library(TARGET name folders...): an empty library with its public headers, hydra::name to users.
function(hydra_library target name)
  add_library(${target} STATIC)
  add_library(hydra::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  foreach(folder ${ARGN})
    file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/hydra/${folder}/*.h)
    list(TRANSFORM headers REPLACE "/\\./" "/")
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include
                                    FILES ${headers})
  endforeach()
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:hydra_compiler>)
endfunction()

# hydra_sources([TORCH_FREE | TENSORS] files...): adds this folder's sources to the library that the
# folder belongs to. How much of Torch they include decides what each costs to compile, even where
# the headers are precompiled: TORCH_FREE (nothing) none, TENSORS (<ATen/core/Tensor.h>, single
# operators, <ATen/Parallel.h>) one second, the others (torch::nn, autograd) eight.
function(hydra_sources)
  cmake_parse_arguments(arg "TORCH_FREE;TENSORS" "" "" ${ARGN})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(folder IN_LIST HYDRA_CORE_FOLDERS)
    set(target hydra_core)
  elseif(folder STREQUAL testing)
    set(target hydra_testing)
  elseif(folder IN_LIST HYDRA_TORCH_FOLDERS AND arg_TENSORS)
    set(target hydra_tensors)
  elseif(folder IN_LIST HYDRA_TORCH_FOLDERS)
    set(target hydra)
  else()
    message(FATAL_ERROR "src/${folder} is in none of the layers: see cmake/HydraTargets.cmake")
  endif()
  list(TRANSFORM arg_UNPARSED_ARGUMENTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(${target} PRIVATE ${arg_UNPARSED_ARGUMENTS})
  if(arg_TORCH_FREE)
    set_source_files_properties(${arg_UNPARSED_ARGUMENTS} TARGET_DIRECTORY ${target}
                                PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# hydra_torch_target(TARGET pch): compiles with a precompiled header that holds Torch, or part of it.
function(hydra_torch_target target pch)
  target_link_libraries(${target} PRIVATE hydra_compiler)
  # The header was compiled as for a library: executables have to agree.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# hydra_test(NAME name SOURCES files... [TORCH [TORCH_FREE | TENSORS]] [LONG] [LABELS labels...] [TIMEOUT seconds]):
# one GoogleTest executable and one test of CTest. TORCH: it needs the whole library; TORCH_FREE and
# TENSORS: how much its sources include of Torch, as in hydra_sources. LONG adds a second one, name_long with the label
# "long", in which HYDRA_LONG asks the executable for its full sweeps.
function(hydra_test)
  cmake_parse_arguments(arg "TORCH;TORCH_FREE;TENSORS;LONG" "NAME;TIMEOUT" "SOURCES;LABELS" ${ARGN})
  if(arg_TORCH AND NOT HYDRA_WITH_TORCH)
    return()
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src
                                                 ${CMAKE_CURRENT_SOURCE_DIR})
  if(arg_TORCH)
    target_link_libraries(${arg_NAME} PRIVATE hydra::testing hydra::hydra)
    if(arg_TENSORS)
      hydra_torch_target(${arg_NAME} hydra_tensors)
    elseif(NOT arg_TORCH_FREE)
      hydra_torch_target(${arg_NAME} hydra_torch_pch)
    endif()
  endif()
  target_link_libraries(${arg_NAME} PRIVATE hydra::core hydra_compiler GTest::gtest_main
                                            GTest::gmock)
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(HYDRA_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 6")
  endif()
  set(environment
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/tsan.supp:halt_on_error=1")
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                                              ENVIRONMENT "${environment}")
  if(arg_LONG)
    add_test(NAME ${arg_NAME}_long COMMAND ${arg_NAME})
    set_tests_properties(${arg_NAME}_long PROPERTIES TIMEOUT 7200 LABELS "${arg_LABELS};long"
                                                     ENVIRONMENT "${environment};HYDRA_LONG=1")
  endif()
endfunction()
