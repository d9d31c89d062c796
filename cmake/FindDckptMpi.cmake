# Finds MPI 3.0 or newer, through CMake's FindMPI. MPI_CXX_COMPILER names the compiler wrapper of the implementation that is meant
# (mpicxx.mpich), if it is not the first that is found.
#
# Defines the target DckptMpi::mpi and DckptMpi_VERSION, which is that of the standard.
set(MPI_CXX_SKIP_MPICXX TRUE)  # the C++ bindings, which MPI 3.0 has removed
find_package(MPI 3.0 QUIET COMPONENTS CXX)
set(DckptMpi_VERSION "${MPI_CXX_VERSION}")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DckptMpi REQUIRED_VARS MPI_CXX_LIBRARIES MPI_CXX_FOUND VERSION_VAR DckptMpi_VERSION)

if(DckptMpi_FOUND AND NOT TARGET DckptMpi::mpi)
  add_library(DckptMpi::mpi INTERFACE IMPORTED)
  set_target_properties(DckptMpi::mpi PROPERTIES INTERFACE_LINK_LIBRARIES MPI::MPI_CXX)
endif()
