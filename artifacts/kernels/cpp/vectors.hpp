// The vector instructions that the compiler knows; which of them the processor has, the code asks when it runs.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86_VECTORS
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 finds fault with its own header
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#if defined(__aarch64__) && defined(__ARM_NEON)
#define HAS_ARM_VECTORS
#include <arm_neon.h>
#endif
