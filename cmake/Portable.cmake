# One binary for each instruction-set level, and a launcher that becomes the best one (src/cli/isa.h).
#
# A level is a build of this same project with -DCOFFERDAM_ISA=LEVEL. A portable build is itself the one of the lowest level, so that
# its tests show what an old processor would compute, and has the others built in folders of their own.
set(COFFERDAM_ISA_LEVELS x86-64-v4-vnni x86-64-v4 x86-64-v3 x86-64-v2)  # best first
list(GET COFFERDAM_ISA_LEVELS -1 lowest_isa)
if(COFFERDAM_PORTABLE)
  set(COFFERDAM_ISA ${lowest_isa})
endif()
if(NOT COFFERDAM_ISA STREQUAL "native" AND NOT COFFERDAM_ISA IN_LIST COFFERDAM_ISA_LEVELS)
  message(FATAL_ERROR "COFFERDAM_ISA is '${COFFERDAM_ISA}'; it may be native or one of ${COFFERDAM_ISA_LEVELS}")
endif()
string(REPLACE "-vnni" ";-mavx512vnni" COFFERDAM_ISA_FLAGS "-march=${COFFERDAM_ISA}")

function(cofferdam_portable_levels launcher)
  include(ExternalProject)
  foreach(level ${COFFERDAM_ISA_LEVELS})
    if(level STREQUAL COFFERDAM_ISA)
      continue()
    endif()
    set(binary ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/cofferdam-${level})
    ExternalProject_Add(cofferdam_${level}
      SOURCE_DIR ${CMAKE_SOURCE_DIR}
      BINARY_DIR ${CMAKE_BINARY_DIR}/isa/${level}
      CMAKE_ARGS -DCOFFERDAM_ISA=${level} -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} -DCOFFERDAM_LLAMA_SOURCE=${COFFERDAM_LLAMA_SOURCE}
        -DCMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}
      BUILD_COMMAND ${CMAKE_COMMAND} --build . --target cofferdam
      BUILD_ALWAYS ON
      USES_TERMINAL_CONFIGURE ON USES_TERMINAL_BUILD ON
      INSTALL_COMMAND ${CMAKE_COMMAND} -E create_hardlink ${CMAKE_BINARY_DIR}/isa/${level}/bin/cofferdam ${binary})
    add_dependencies(${launcher} cofferdam_${level})
  endforeach()
endfunction()
