# Compiler flags for our own code; third-party headers are system headers and exempt from the warnings.
add_library(cofferdam_flags INTERFACE)
target_compile_options(cofferdam_flags INTERFACE
  -Wall -Wextra -Wconversion -Werror -fno-omit-frame-pointer
  # GCC 12 reports false positives of these two inside libstdc++ and Abseil once inlined.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety>)
target_compile_options(cofferdam_flags INTERFACE ${COFFERDAM_ISA_FLAGS})
if(COFFERDAM_FAULTS)
  target_compile_definitions(cofferdam_flags INTERFACE COFFERDAM_FAULTS)
endif()
set(COFFERDAM_TEST_ENVIRONMENT "")  # of every test
if(COFFERDAM_SANITIZE)
  target_compile_options(cofferdam_flags INTERFACE -fsanitize=${COFFERDAM_SANITIZE} -g1)
  target_link_options(cofferdam_flags INTERFACE -fsanitize=${COFFERDAM_SANITIZE})
  if(COFFERDAM_SANITIZE MATCHES "undefined")
    # What is found ends the process, so that no test passes over it.
    target_compile_options(cofferdam_flags INTERFACE -fno-sanitize-recover=undefined)
    # ggml is built to go on: it ends here, too, but for what the file names.
    list(APPEND COFFERDAM_TEST_ENVIRONMENT
      "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:suppressions=${CMAKE_SOURCE_DIR}/cmake/ubsan.supp")
  endif()
  if(COFFERDAM_SANITIZE MATCHES "thread")
    # Asio holds a fence that ThreadSanitizer does not model, beside mutexes that it does.
    target_compile_options(cofferdam_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    list(APPEND COFFERDAM_TEST_ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan.supp")
  endif()
endif()
if(COFFERDAM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "COFFERDAM_FUZZ needs Clang, which brings libFuzzer: cmake --preset fuzz")
  endif()
  # Counts branches and compared values for libFuzzer; its main is linked into the targets of fuzz/ alone.
  # Clang 19 calls deprecated what libstdc++ 12 uses inside of its own std::stable_sort.
  # Since Clang 18 some templates have other names than GCC 12 gave them in Debian's Abseil.
  target_compile_options(cofferdam_flags INTERFACE -fsanitize=fuzzer-no-link -Wno-deprecated-declarations -fclang-abi-compat=17)
endif()
if(COFFERDAM_COVERAGE)
  # Unoptimised, the branches are those of the source.
  target_compile_options(cofferdam_flags INTERFACE --coverage -O0 -fprofile-update=atomic -fprofile-abs-path
    "SHELL:-include ${CMAKE_SOURCE_DIR}/tests/coverage/no_faults.h")
  target_link_options(cofferdam_flags INTERFACE --coverage)
endif()
# Assertions stay on in every build: see base/check.h.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
