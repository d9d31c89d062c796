# As docs/building.md shows it.
include(FetchContent)
FetchContent_Declare(dckpt GIT_REPOSITORY "${DCKPT_REPOSITORY}" GIT_TAG "${DCKPT_TAG}")
FetchContent_MakeAvailable(dckpt)
