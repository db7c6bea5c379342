/* Sums that stay in the few registers of a small core, at any level of optimization. */
#define EACH_1(DO) DO(0)
#define EACH_4(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH_8(DO) EACH_4(DO) DO(4) DO(5) DO(6) DO(7)
#define EACH(WIDTH, DO) EACH_##WIDTH(DO)
#define ADD_PIXELS(WIDTH) EACH_##WIDTH(ADD)

/* Functions of their own keep their numbers in registers. */
#ifdef __GNUC__
#define KERNEL static __attribute__((noinline)) void
#else
#define KERNEL static void
#endif

/* The nearest that a byte holds. */
#if defined(__ARM_FEATURE_SAT) && defined(__GNUC__)
static int8_t saturated(int32_t value)
{
    int32_t held;
    __asm__("ssat %0, #8, %1" : "=r"(held) : "r"(value));
    return (int8_t)held;
}
#else
static int8_t saturated(int32_t value)
{
    return limited((Range){-128, 127}, value);
}
#endif

/* A sum as an integer of what the layer gives; `start` is a whole number and a half, times 2^32. */
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
static int32_t scaled_sum(int32_t sum, int32_t multiplier, int64_t start)
{
    int32_t found;
    __asm__("smmlar %0, %1, %2, %3"
            : "=r"(found)
            : "r"(sum), "r"(multiplier), "r"(scaled(start)));
    return found;
}
#else
static int32_t scaled_sum(int32_t sum, int32_t multiplier, int64_t start)
{
    return scaled((int64_t)sum * multiplier + start);
}
#endif

#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_UNALIGNED) && defined(__thumb2__) &&       \
    defined(__GNUC__) && !defined(__ARM_BIG_ENDIAN)
/* Eight sums at a time, which take eight registers: eight pixels are loaded in two words and widened
   to halves. The stack holds pixels, bias, `to` and the list, and above what is saved `length`. */
#define GATHER_BY_DSP
static __attribute__((naked, noinline, unused)) void
gather_by_dsp(const int8_t *pixels __attribute__((unused)), int32_t bias __attribute__((unused)),
              int32_t *to __attribute__((unused)), const void *list __attribute__((unused)),
              int length __attribute__((unused)))
{
    __asm__ volatile(".syntax unified\n"
                     "push {r4-r11, lr}\n"
                     "push {r0-r3}\n"
                     "1: ldr r0, [sp, #4]\n"
                     "ldr r12, [sp, #12]\n"
                     "ldr lr, [sp]\n"
                     "mov r1, r0\n"
                     "mov r2, r0\n"
                     "mov r3, r0\n"
                     "mov r4, r0\n"
                     "mov r5, r0\n"
                     "mov r6, r0\n"
                     "mov r7, r0\n"
                     "ldrd r8, r9, [r12], #8\n"
                     "cmp r8, #0x80000000\n"
                     "beq 3f\n"
                     "2: add r8, r8, lr\n"
                     "ldr r10, [r8]\n"
                     "ldr r8, [r8, #4]\n"
                     "sxtb16 r11, r10\n"
                     "sxtb16 r10, r10, ror #8\n"
                     "smlabb r0, r11, r9, r0\n"
                     "smlabb r1, r10, r9, r1\n"
                     "smlatb r2, r11, r9, r2\n"
                     "smlatb r3, r10, r9, r3\n"
                     "sxtb16 r11, r8\n"
                     "sxtb16 r10, r8, ror #8\n"
                     "smlabb r4, r11, r9, r4\n"
                     "smlabb r5, r10, r9, r5\n"
                     "smlatb r6, r11, r9, r6\n"
                     "smlatb r7, r10, r9, r7\n"
                     "ldrd r8, r9, [r12], #8\n"
                     "cmp r8, #0x80000000\n"
                     "bne 2b\n"
                     "3: ldr r8, [sp, #8]\n"
                     "stmia r8!, {r0-r7}\n"
                     "str r8, [sp, #8]\n"
                     "add lr, lr, #8\n"
                     "str lr, [sp]\n"
                     "ldr r9, [sp, #52]\n"
                     "subs r9, r9, #8\n"
                     "str r9, [sp, #52]\n"
                     "bgt 1b\n"
                     "add sp, sp, #16\n"
                     "pop {r4-r11, pc}\n");
}

/* Eight sums of a filter that keeps all weights of 3 x 3 kernels. Of four neighboring pixels in a
   word, halves hold two and two: a row of a kernel takes two instructions a sum. Its three weights
   are read as a word, which ends a byte behind them: the table is a byte longer. */
typedef struct {
    int32_t bias, pitch, next, channels; /* `next` leads from a plane's last row to the next plane */
} Kernels;

#define TWO_SUMS(AT, FIRST, SECOND)                                                                \
    "ldr r12, [r8, #" AT "]\n"                                                                     \
    "sxtb16 lr, r12, ror #8\n"                                                                     \
    "sxtb16 r12, r12\n"                                                                            \
    "smlad " FIRST ", r12, r10, " FIRST "\n"                                                       \
    "smlabb " FIRST ", lr, r11, " FIRST "\n"                                                       \
    "smlad " SECOND ", lr, r10, " SECOND "\n"                                                      \
    "smlatb " SECOND ", r12, r11, " SECOND "\n"
#define ROW_OF_KERNEL(SKIP)                                                                        \
    "ldr r10, [r9], #3\n"                                                                          \
    "sxtb16 r11, r10, ror #8\n"                                                                    \
    "sxtb16 r10, r10\n" TWO_SUMS("0", "r0", "r1") TWO_SUMS("2", "r2", "r3")                        \
        TWO_SUMS("4", "r4", "r5") TWO_SUMS("6", "r6", "r7") "ldr r12, [sp, #" SKIP "]\n"           \
                                                            "add r8, r8, r12\n"

/* The stack holds pixels, weights, `to`, the channels that are left, the four numbers, and above what
   is saved `length`. */
static __attribute__((naked, noinline, unused)) void
gather_kernels_by_dsp(const int8_t *pixels __attribute__((unused)),
                      const int8_t *weights __attribute__((unused)),
                      int32_t *to __attribute__((unused)),
                      const Kernels *kernels __attribute__((unused)),
                      int length __attribute__((unused)))
{
    __asm__ volatile(".syntax unified\n"
                     "push {r4-r11, lr}\n"
                     "ldm r3, {r4-r7}\n"
                     "push {r4-r7}\n"
                     "push {r0-r3}\n"
                     "1: ldr r8, [sp]\n"
                     "ldr r9, [sp, #4]\n"
                     "ldr r0, [sp, #28]\n"
                     "str r0, [sp, #12]\n"
                     "ldr r0, [sp, #16]\n"
                     "mov r1, r0\n"
                     "mov r2, r0\n"
                     "mov r3, r0\n"
                     "mov r4, r0\n"
                     "mov r5, r0\n"
                     "mov r6, r0\n"
                     "mov r7, r0\n"
                     "2:\n" ROW_OF_KERNEL("20") ROW_OF_KERNEL("20") ROW_OF_KERNEL("24")
                     "ldr r12, [sp, #12]\n"
                     "subs r12, r12, #1\n"
                     "str r12, [sp, #12]\n"
                     "bne 2b\n"
                     "ldr r8, [sp]\n"
                     "add r8, r8, #8\n"
                     "str r8, [sp]\n"
                     "ldr r8, [sp, #8]\n"
                     "stmia r8!, {r0-r7}\n"
                     "str r8, [sp, #8]\n"
                     "ldr r9, [sp, #68]\n"
                     "subs r9, r9, #8\n"
                     "str r9, [sp, #68]\n"
                     "bgt 1b\n"
                     "add sp, sp, #32\n"
                     "pop {r4-r11, pc}\n");
}
#endif
