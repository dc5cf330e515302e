# One library per folder of src/, and the direction in which they may depend on each other.
#
# A folder's headers are reached through a directory that holds a link to that folder alone, so
# `#include "kv/pool.h"` compiles only in a target that depends on `kv`, and a dependency that the table
# does not allow stops the configuration. The same table stands in docs/design.md (section 9); a test compares them.
set(COFFERDAM_MAY_USE_base "")
set(COFFERDAM_MAY_USE_text base)
set(COFFERDAM_MAY_USE_kv base)
set(COFFERDAM_MAY_USE_handoff base kv)
set(COFFERDAM_MAY_USE_model base kv text)
set(COFFERDAM_MAY_USE_engine base kv model)
set(COFFERDAM_MAY_USE_fabric base kv)
set(COFFERDAM_MAY_USE_worker base kv text handoff model engine fabric proto)
set(COFFERDAM_MAY_USE_gateway base text proto)
set(COFFERDAM_MAY_USE_cli base text kv handoff model engine fabric worker gateway proto)

# cofferdam_library(FOLDER SOURCES a.cc ... USES base kv ... LINKS external::targets ...)
function(cofferdam_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;LINKS" ${ARGN})
  set(view ${CMAKE_BINARY_DIR}/include/${folder})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${folder} ${view}/${folder} SYMBOLIC)
  add_library(cofferdam_${folder} STATIC ${ARG_SOURCES})
  target_include_directories(cofferdam_${folder} PUBLIC ${view})
  target_link_libraries(cofferdam_${folder} PRIVATE cofferdam_flags PUBLIC ${ARG_LINKS})
  foreach(used ${ARG_USES})
    if(NOT used IN_LIST COFFERDAM_MAY_USE_${folder})
      message(FATAL_ERROR "src/${folder} must not use ${used}: see cmake/Layers.cmake and docs/design.md, section 9")
    endif()
    target_link_libraries(cofferdam_${folder} PUBLIC cofferdam_${used})
  endforeach()
endfunction()

# cofferdam_test(NAME SOURCES a_test.cc ... USES base kv ... LINKS ...): a GoogleTest binary that CTest runs as one test.
function(cofferdam_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;USES;LINKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE cofferdam_flags ${ARG_LINKS} GTest::gmock GTest::gtest_main)
  foreach(used ${ARG_USES})
    target_link_libraries(${name} PRIVATE cofferdam_${used})
  endforeach()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    SKIP_REGULAR_EXPRESSION "SKIPPED: the whole test" ENVIRONMENT "${COFFERDAM_TEST_ENVIRONMENT}")
endfunction()
