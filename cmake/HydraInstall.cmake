# cmake --install: the libraries, their public headers and the package Hydra, all relocatable.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Hydra)
set(HYDRA_COMPONENTS "")
# An export of its own for each, so that the core can be used where there is no LibTorch.
foreach(target hydra_core hydra hydra_testing)
  if(TARGET ${target})
    get_target_property(component ${target} EXPORT_NAME)
    list(APPEND HYDRA_COMPONENTS ${component})
    install(TARGETS ${target} EXPORT Hydra_${component}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
            FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(EXPORT Hydra_${component} NAMESPACE hydra:: FILE HydraTargets_${component}.cmake
            DESTINATION ${package_folder})
  endif()
endforeach()

set(HYDRA_TORCH_VERSION "")
if(HYDRA_WITH_TORCH)
  hydra_torch_version(HYDRA_TORCH_VERSION ${HYDRA_TORCH_ROOT})
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/HydraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/HydraConfig.cmake INSTALL_DESTINATION ${package_folder}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/HydraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/HydraConfig.cmake ${PROJECT_BINARY_DIR}/HydraConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/HydraFindTorch.cmake
              ${PROJECT_SOURCE_DIR}/cmake/HydraUring.cmake
        DESTINATION ${package_folder})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
