/* Sums that stay in the few registers of a small core. With the DSP extension four pixels are loaded
   and widened at a time. */
#define EACH_1(DO) DO(0)
#define EACH_4(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_8(DO) EACH_4(DO) DO(4) DO(5) DO(6) DO(7)
#define EACH(WIDTH, DO) EACH_##WIDTH(DO)

#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
#include <arm_acle.h>

#define ADD_FOUR(AT)                                                                               \
    {                                                                                              \
        int8x4_t four;                                                                             \
        memcpy(&four, from + (AT), sizeof four);                                                   \
        const int16x2_t even = __sxtb16(four);                                                     \
        const int16x2_t odd = __sxtb16((int8x4_t)__ror((uint32_t)four, 8));                        \
        sum[(AT)] = __smlabb(even, weight, sum[(AT)]);                                             \
        sum[(AT) + 1] = __smlabb(odd, weight, sum[(AT) + 1]);                                      \
        sum[(AT) + 2] = __smlatb(even, weight, sum[(AT) + 2]);                                     \
        sum[(AT) + 3] = __smlatb(odd, weight, sum[(AT) + 3]);                                      \
    }
#define ADD_PIXELS_1 ADD(0)
#define ADD_PIXELS_4 ADD_FOUR(0)
#define ADD_PIXELS_8 ADD_FOUR(0) ADD_FOUR(4)
#define ADD_PIXELS(WIDTH) ADD_PIXELS_##WIDTH
#else
#define ADD_PIXELS(WIDTH) EACH_##WIDTH(ADD)
#endif
